"""Whether others may read or write a file: what its mode says, and who the members of its group are."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterable

READ, WRITE, ENTER = stat.S_IROTH, stat.S_IWOTH, stat.S_IXOTH
ANY = stat.S_IRWXO


def everybody_may(found: os.stat_result, what: int) -> bool:
    """Whether the mode gives everybody one of `what`: READ, WRITE, ENTER or ANY of them."""
    return bool(found.st_mode & what)


def others_may(
    found: os.stat_result,
    what: int,
    find_group: Callable[[int], grp.struct_group] = grp.getgrgid,
    list_users: Callable[[], Iterable[pwd.struct_passwd]] = pwd.getpwall,
) -> bool:
    """Whether the mode gives one of `what` (READ, WRITE, ENTER, ANY) to somebody who is neither the owner nor root.

    A user's private group, as most Linux systems make one for each user together with umask 002, is the user alone. The rule
    is that of Debian's sshd for `authorized_keys`: nobody else is a member, and no other user has it as login group.
    """
    if everybody_may(found, what):
        return True
    if not found.st_mode & what << 3:
        return False
    try:
        named = find_group(found.st_gid).gr_mem
    except KeyError:
        return True  # who is in a group without an entry cannot be found out
    users = list(list_users())
    members = {user.pw_uid for user in users if user.pw_gid == found.st_gid or user.pw_name in named}
    unknown = set(named) - {user.pw_name for user in users}
    return bool(unknown) or not members or not members <= {found.st_uid, 0}
