// A plugin of OpenClaw: before each prompt, the agent reads what heartbeatd sent lately. Not tested with a running copy.
import { definePluginEntry } from "openclaw/plugin-sdk/plugin-entry";

export default definePluginEntry({
  id: "heartbeatd-said",
  name: "What heartbeatd sent",
  register(api) {
    api.on("before_prompt_build", async () => {
      const url = "http://127.0.0.1:7857/api/v1/agents/main/said?limit=5";
      const answer = await fetch(url, { headers: { Authorization: `Bearer ${process.env.HEARTBEATD_TOKEN}` } });
      const { said } = await answer.json();
      return { prependContext: said.map((each) => `You sent at ${each.at}: ${each.text}`).join("\n") };
    });
  },
});
