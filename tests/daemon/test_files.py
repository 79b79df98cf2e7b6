"""Tests who may read or write a file, by its mode and its group."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping

import pytest
from loops import loop_over

from scheduler.system.files import MAY_ANYTHING, MAY_READ, MAY_WRITE, everybody_may, others_may

ANN, BOB, OPS = 1000, 1001, 500
USERS = [
    pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh"))
    for name, uid, gid in (("root", 0, 0), ("ann", ANN, ANN), ("bob", BOB, BOB))
]


def file(mode: int, group: int, owner: int = ANN) -> os.stat_result:
    return os.stat_result((0o100000 | mode, 0, 0, 1, owner, group, 0, 0, 0, 0))


def may(found: os.stat_result, permission: int, members: Mapping[int, list[str]], users: list[pwd.struct_passwd] = USERS) -> bool:
    def find_group(number: int) -> grp.struct_group:
        return grp.struct_group(("some", "x", number, members[number]))

    return others_may(found, permission, find_group, lambda: users)


@pytest.mark.parametrize(
    ("members", "others"),
    [
        ({ANN: []}, False),  # as useradd makes it
        ({ANN: ["ann"]}, False),
        ({ANN: ["root", "ann"]}, False),  # root may write anything
        ({ANN: ["bob"]}, True),
        ({ANN: ["ann", "somebody-of-a-directory"]}, True),
        ({}, True),  # the number of a group that there is not
    ],
)
def test_a_private_group_contains_only_its_user(members: dict[int, list[str]], others: bool) -> None:
    assert may(file(0o664, ANN), MAY_WRITE, members) is others


def test_a_group_that_is_the_login_group_of_two_users_is_not_private() -> None:
    shared = [*USERS, pwd.struct_passwd(("eve", "x", 1002, ANN, "", "/", "/bin/sh"))]
    assert may(file(0o664, ANN), MAY_WRITE, {ANN: []}, shared)


def test_a_group_without_known_members_is_not_private() -> None:
    assert may(file(0o664, OPS), MAY_WRITE, {OPS: []})


def test_the_private_group_of_another_user_is_not_private_for_the_owner() -> None:
    assert may(file(0o664, BOB), MAY_WRITE, {BOB: []})


@loop_over(
    ("mode", "permission", "others"),
    [
        (0o640, MAY_WRITE, False),
        (0o640, MAY_READ, True),
        (0o640, MAY_ANYTHING, True),
        (0o600, MAY_ANYTHING, False),
        (0o604, MAY_READ, True),
        (0o604, MAY_WRITE, False),
        (0o710, MAY_ANYTHING, True),
        (0o710, MAY_READ, False),
    ],
)
def test_only_the_permissions_in_question_count(mode: int, permission: int, others: bool) -> None:
    assert may(file(mode, OPS), permission, {OPS: ["bob"]}) is others


def test_permissions_for_everybody_count() -> None:
    assert everybody_may(file(0o666, ANN), MAY_WRITE)
    assert not everybody_may(file(0o664, OPS), MAY_WRITE)
    assert may(file(0o666, ANN), MAY_WRITE, {ANN: []})
