"""URLs of etcd: which are understood, and what is said of the others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import aiolock
from aiolock.stores import etcd
from aiolock.stores.etcd._settings import from_url

pytestmark = pytest.mark.one_loop


def test_url_with_several_servers_has_them_in_their_order() -> None:
    """Each has a host and a port, which is 2379 if none is given."""
    settings = from_url("etcd://a,b:1,[::1]:2,[fe80::1]/here/and%20there")
    assert settings.addresses == ("a:2379", "b:1", "[::1]:2", "[fe80::1]:2379")
    assert settings.folder == "here/and there/"
    assert settings.tls is None
    assert from_url("etcd://a/").folder == ""


def test_url_with_a_login_shows_no_password() -> None:
    """Neither the settings nor the store show it."""
    settings = from_url("etcd://me:s3cret%2F@a/x")
    assert (settings.user, settings.password) == ("me", "s3cret/")
    assert "s3cret" not in repr(settings)
    client = aiolock.connect("etcd://me:s3cret@a/x")
    assert "s3cret" not in repr(client)
    assert "s3cret" not in repr(etcd.from_url("etcd://me:s3cret@a/x", "p"))


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("etcd://", "names no host"),
        ("etcd:///locks", "names no host"),
        ("etcd://a,,b", "address 2"),
        ("etcd://a:0", "port of address 1"),
        ("etcd://a,b,a:2379", "twice"),
        ("etcd://me@a", "a user and no password"),
        ("etcd://:secret@a", "a password and no user"),
        ("etcd://a?ca=x", "begin the URL with etcds://"),
        ("etcd://a?timeout=1", "no option 'timeout', only ca, cert, key"),
        ("etcd://a/x//y", "two slashes"),
        ("etcds://a?ca=/nowhere", "ca= in this URL is not there"),
        ("etcds://a?cert={pem}", "cert= and key= go together"),
        ("etcds://a?key={pem}", "cert= and key= go together"),
        ("etcds://a?ca={pem}", "cannot be read"),
        ("etcd://a/x/v1", "have no /v1 in them"),
    ],
)
def test_url_that_is_wrong_raises_value_error(url: str, match: str, tmp_path: Path) -> None:
    """It is refused before anything is sent, and the error says what is right."""
    (tmp_path / "pem").write_text("no certificate")
    with pytest.raises(ValueError, match=match):
        aiolock.connect(url.format(pem=tmp_path / "pem"))


def test_prefix_that_could_be_mistaken_for_a_name_raises_value_error() -> None:
    """Locks of another prefix would be among those of this one."""
    with pytest.raises(ValueError, match="have no /v1 in them"):
        aiolock.connect("etcd://a", prefix="a/v1/n")


def test_url_without_the_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is needed only by this store, and it is said how to install it."""
    monkeypatch.setitem(sys.modules, "hpack", None)
    with pytest.raises(ImportError, match=r"aiolock-redis\[etcd\]"):
        aiolock.connect("etcd://a")
