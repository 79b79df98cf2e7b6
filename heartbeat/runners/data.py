"""A run as plain data for the agent, and what the agent gave back as an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from heartbeat.runners import MAX_ANSWER, Answer, Failure, Run, Tokens
from heartbeat.runners.trouble import Trouble, message_in, one_line
from heartbeat.runners.veil import Veil

MOST_USD = 1_000_000  # what a run cannot cost


def of(run: Run) -> dict[str, object]:
    """The run as JSON knows it: `timeout` in seconds, `run` the number of the run, `messages` if there were any."""
    data: dict[str, object] = {
        "agent": run.agent,
        "prompt": clean(run.prompt),
        "model": run.model,
        "timeout": run.timeout.total_seconds(),
        "meta": dict(run.meta),
        "run": run.meta.get("run"),
    }
    if run.messages:
        data["messages"] = turns(run)[:-1]
    return data


def turns(run: Run) -> list[dict[str, str]]:
    """The conversation as models know it: what was said before, then the prompt."""
    said = (*run.messages, ("user", run.prompt))
    return [{"role": role, "content": clean(text)} for role, text in said]


def read(value: object, *, failed: Failure, veil: Veil) -> Answer:
    """The answer that a text, None (nothing to say) or a mapping stands for.

    A mapping holds `text`, or `error`, which is a failure of the class `failed`, or `later: true`; beside them `model`,
    `tokens` (`input output cache_read cache_write`) and `cost_usd`. Trouble if it holds none of the three, or no text.
    """
    if value is None or isinstance(value, str):
        return Answer(text=checked(value or ""))
    if not isinstance(value, Mapping):
        raise Trouble(Failure.BAD_ANSWER, f"answered with {type(value).__name__} where a text, null or an object was expected")
    return _read(value, failed, veil)


def checked(text: str) -> str:
    """The text as it is kept; Trouble if it is larger than an answer may be."""
    kept = clean(text)
    if len(kept.encode()) > MAX_ANSWER:
        raise Trouble(Failure.BAD_ANSWER, f"the answer is larger than {MAX_ANSWER} bytes")
    return kept


def clean(text: str) -> str:
    """The text without what no UTF-8 and no database can hold: half surrogates and zero bytes."""
    return text.replace("\0", "").encode(errors="replace").decode()


def count(value: object) -> int:
    """A number of tokens as it came; 0 for whatever is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def tokens(value: object) -> Tokens | None:
    """Tokens by kind as an agent tells them; None if it does not."""
    if not isinstance(value, Mapping):
        return None
    return Tokens(**{field.name: count(value.get(field.name)) for field in fields(Tokens)})


def model(value: object) -> str | None:
    """The name of a model as it came, within the bounds of a name."""
    return clean(value)[:200] if isinstance(value, str) and value else None


def cost(value: object) -> float | None:
    """USD as they came; None for whatever is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < MOST_USD else None


def _read(value: Mapping[str, object], failed: Failure, veil: Veil) -> Answer:
    spent = Answer(model_used=model(value.get("model")), tokens=tokens(value.get("tokens")), cost_usd=cost(value.get("cost_usd")))
    if value.get("error"):
        said = message_in(value["error"]) or "it does not say why"
        return replace(spent, failure=failed, error=one_line(f"the agent failed: {said}", veil), transient=True)
    if value.get("later") is True:
        return replace(spent, later=True)
    text = value.get("text")
    if "text" not in value or not (text is None or isinstance(text, str)):
        return replace(spent, failure=Failure.BAD_ANSWER, error="answered without a text; give back text, error or later")
    return replace(spent, text=checked(text or ""))
