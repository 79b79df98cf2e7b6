"""Shows the checklist of one agent in an editor, and saves it unless another user has changed it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from starlette.concurrency import run_in_threadpool

from heartbeatd.questions import GetChecklist
from heartbeatd.verbs import NO_VERSION, SetChecklist
from scheduler.engine.config_reload import changed_lines
from scheduler.web.api_request import ApiRequest
from scheduler.web.http_errors import HttpError
from scheduler.web.page.daemon_views import find_undo
from scheduler.web.page.rendering import Page
from scheduler.web.page.views import FormRequest, PageRequest, Redirect
from scheduler.web.perform import ask, perform


@dataclass(frozen=True, slots=True)
class Editor:
    """The editor: the text in it, and the version of the file that it replaces. `version` empty: it cannot be saved here.

    `diff` are the changed lines between the file as it is now and the text, after another user has changed the file,
    and if an edit is to be undone.
    """

    file: str | None
    text: str
    version: str
    problem: str = ""
    diff: tuple[str, ...] = ()
    status: int = 200


def show_checklist(request: PageRequest) -> Page:
    """The checklist as it is, or as it was before an edit that is to be undone."""
    now, undo = _open_editor(request.api), find_undo(request)
    if undo is None or undo.checklist is None:
        return _render(request.api, now)
    return _render(request.api, replace(now, text=undo.checklist, diff=changed_lines(now.text, undo.checklist)))


async def save_checklist(form: FormRequest) -> Page | Redirect:
    """Save the text. If that is refused, the editor still holds it."""
    text, version = form.fields.get("text", "").replace("\r\n", "\n"), form.fields.get("version", "")
    try:
        form.check()
        saved = await perform(form.api, "put_checklist", SetChecklist(text=text, hash=version))
    except HttpError as error:
        return await run_in_threadpool(_show_refused, form.api, text, version, error)
    advice = "" if saved.has_work else " It has no items, so runs are skipped (see on_empty)."
    return Redirect("", f"The checklist is saved.{advice}")


def _show_refused(api: ApiRequest, text: str, version: str, error: HttpError) -> Page:
    try:
        now = _open_editor(api)
    except HttpError:  # another user has removed the agent
        now = Editor("", "", "")
    if error.status != 412:
        return _render(api, Editor(now.file, text, version, error.message, status=error.status))
    problem = (
        "Somebody else has changed the checklist since you opened it, so nothing was saved. Your text is kept below. The lines"
        " show what saving it now would change. To keep the other change, copy its lines (-) into your text first."
    )
    return _render(api, Editor(now.file, text, now.version, problem, changed_lines(now.text, text), error.status))


def _open_editor(api: ApiRequest) -> Editor:
    try:
        found = ask(api, "get_checklist", GetChecklist())
    except HttpError as error:
        if error.status == 404 and api.path["name"] in api.app_state.settings().heartbeats:
            return Editor(api.app_state.settings().heartbeats[api.path["name"]].checklist, "", NO_VERSION)
        if error.status == 409:
            return Editor(None, "", "", error.message)
        raise
    return Editor(found.file, found.text, found.hash or "")


def _render(api: ApiRequest, editor: Editor) -> Page:
    context = {"name": api.path["name"], "has_config": True, "editor": editor}
    return Page("agent_checklist.html", context, editor.status)
