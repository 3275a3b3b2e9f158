"""No secret of this machine leaves it in a support bundle, in any form in which tools print it."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.operate.support_bundle import MARK, Redactor, known
from infra.state import State
from tests.nightly import at_night

# Visible ASCII, as generated passwords, tokens and passphrases are.
SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=60)
AROUND = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=40)

KEY = """-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW
QyNTUxOQAAACDnotakeyatallbutoftheformthatonehasAAAAJg=
-----END OPENSSH PRIVATE KEY-----
"""


@given(secret=SECRETS, before=AROUND, after=AROUND)
def test_a_known_secret_is_nowhere_in_any_form(secret: str, before: str, after: str) -> None:
    coded = base64.b64encode((before + secret + after).encode()).decode()
    forms = [secret, quote(secret, safe=""), json.dumps(secret)[1:-1]]
    text = "\n".join([*(f"{before}{form}{after}" for form in forms), coded])
    clean = Redactor([secret]).text(text)
    assert not [form for form in forms if form in clean]
    assert coded not in clean
    assert base64.b64encode(secret.encode()).decode() not in clean


@given(secrets=st.lists(SECRETS, min_size=2, max_size=4, unique=True))
def test_a_secret_that_holds_another_goes_whole(secrets: list[str]) -> None:
    joined = "".join(secrets)
    clean = Redactor([*secrets, joined]).text(f"<{joined}>")
    assert not [each for each in secrets if each in clean]


@given(text=AROUND)
def test_what_was_redacted_once_stays_as_it_is(text: str) -> None:
    redactor = Redactor(["a-known-secret"])
    once = redactor.text(f"{text} a-known-secret")
    assert redactor.text(once) == once


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "a1B2" * 8,
        "ghp_" + "a1B2" * 9,
        "sk-" + "a1B2" * 10,
        "xoxb-" + "1234567890-" + "abcdefghij",
        "xapp-1-" + "A1B2C3D4E5-" + "abcdefghij",
        "glpat-" + "a1B2" * 5,
        base64.b64encode(("-----BEGIN " + "PRIVATE KEY-----\nab").encode() * 3).decode(),
        "https://hooks.slack.com/services/T000/B000/abcdEFGH",
        "https://discord.com/api/webhooks/12345/abcd-EFGH",
        "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl",
        "ne1" + "CiQ0ZGVm" * 8 + ".abc",
        "AKIA" + "ABCD1234" * 2,
        "AIza" + "SyA1b2C3d4E5" * 3,
        "v1:N0kY582dBAI=:v1:uSrnmAmR7jyTys5q:J0Mgo1F+MePB5/F7XaWPiNLrk942gg==",
        KEY.splitlines()[1],
    ],
)
def test_what_looks_like_a_secret_goes_although_nobody_knows_it(secret: str) -> None:
    text = KEY if secret in KEY else f"log: {secret} and on"
    assert secret not in Redactor().text(text)


@pytest.mark.parametrize(
    "line",
    [
        "password: hunter2",
        "MARIADB_ROOT_PASSWORD=hunter2",
        '"secret_access_key": "hunter2"',
        "'api-key': 'hunter2'",
        "AccountingStoragePass = hunter2",
        "client-key-data: hunter2",
        "Authorization: Bearer hunter2hunter2",
        "https://user:hunter2@host/path",
        "token=hunter2; next",
        "passphrase: correct hunter2 battery",
        'password: "cut hunter2',
        "token: |\n  hunter2\n  hunter2",
        "token: >-\n\n  hunter2",
        "  - token:\n      hunter2",
        "tokens:\n- abc\n- hunter2",
        '"tokens": [\n  "hunter2"\n]',
        "tokens: hunter2",
        "password: [hunter2]",
        "password: abc,hunter2",
        "password: abc,;]hunter2",
        "run --token abc,]hunter2",
        "password: 'it''s hunter2'",
        "'password': 'it\\'s hunter2'",
        "password=|hunter2",
        r"""{\"password\": \"hun\\\"ter, hunter2\"}""",
        '{"name":"DB_PASSWORD","value":"hunter2"}',
        "- name: DB_PASSWORD\n  value: hunter2",
        "Server=x;Pwd=hunter2",
        "'password' => 'hunter2'",
        "run --token hunter2 on",
        'run --token "a hunter2"',
        '["--api-key","hunter2"]',
        "args:\n- --api-key\n- hunter2",
        "ENV HF_TOKEN hunter2",
        "machine h login u password hunter2",
        "machine h\nlogin u\npassword hunter2",
        "redis://:hunter2@host",
        "https://u:p@ss/hunter2@host",
        "https://hunter2hunter2@host",
        "Cookie: session=hunter2; other=hunter2",
        "Set-Cookie: hunter2=1",
        "GET /b/k?X-Amz-Signature=hunter2&X-Amz-Date=1",
        "https://acct.blob/c?sv=1&sig=hunter2%3D&se=2",
        "curl -u user:hunter2 https://host",
        "curl --user user:hunter2 https://host",
        "mysql -uroot -phunter2 -h db",
        "sshpass -p hunter2 ssh host",
        "sshpass -phunter2 ssh host",
        "wandb login hunter2hunter2",
        "hf auth login hunter2",
        "auth=hunter2",
        "_auth: hunter2",
        "encryption_key=hunter2",
        "signing_key: hunter2",
        "WANDB_KEY=hunter2",
    ],
)
def test_what_is_called_a_secret_goes_and_its_name_stays(line: str) -> None:
    clean = Redactor().text(line)
    assert "hunter2" not in clean
    assert MARK in clean
    assert clean[:4] == line[:4]


@pytest.mark.parametrize(
    "line",
    [
        "train_tokens_per_s: 8573.1",
        "num_output_tokens=12",
        "state_is_drain: true; 3 jobs passed",
        "12 finetune RUNNING worker-[0-1]",
        'secretName: {"a": 1}'[:0] + "tokenizer: SmolLM2",
        "sha256 " + "0123456789abcdef" * 4,
        "output_tokens: 1.5M; tokens=12/s",
        '{"tokens": 12, "b": 1}',
        "--max-tokens 12 --tokenizer SmolLM2",
        "ssh://git@github.com/org/repository",
        "the token expired; a password is asked for",
        "token:\nnext: line",
        "mkdir -p /mnt/data; scontrol -p x",
        "squeue -u root; ls -pal",
        "key: value; keyboard=us; ssh_public_key_file: /x.pub; public_key=ssh-ed25519",
        "author: ann; authentication=munge; AuthType=auth/munge; AuthInfo=x",
        "design=1; signal: 15",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert Redactor().text(line) == line


@pytest.mark.parametrize(
    "piece",
    [
        *("x", "x-", "a.b@", "password ", 'token: "', "://a:b", "eyJ", " ", "\n", "://", "\\"),
        *map(at_night, ("abcdefgh\n", "-----END " + "PRIVATE KEY-----", "--token ", "token:\n ")),
        "ab\n-----END " + "PRIVATE KEY-----",
        *map(at_night, ("token: |\n\n", 'token: \\"', "login a password ", "ENV ", "token: ,")),
        *("name: token value: ", "LS0tLS1CRUdJTi" + "a" * 20 + "\n"),
        *map(at_night, ("tokens: 1", "curl ", "curl -u a", "a_key", "auth ", "?sig", "cookie ")),
        *("mysql -", "sshpass "),
    ],
)
def test_a_log_of_megabytes_is_read_in_one_go(piece: str) -> None:
    """Patterns that look back at each letter took minutes for one line of 2 MB."""
    Redactor(["a-known-secret"], emails=True).text(piece * (1_000_000 // len(piece)))


def test_a_key_that_is_cut_off_goes_to_the_end() -> None:
    clean = Redactor().text("before\n" + "\n".join(KEY.splitlines()[:2]))
    assert clean == f"before\n{MARK}"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\\n"])
def test_a_key_whose_begin_is_cut_off_goes_from_there(newline: str) -> None:
    end = newline.join(KEY.splitlines()[1:])
    for cut in (0, 30, len(KEY.splitlines()[1]) - 2):
        clean = Redactor().text(f"a line.{newline}{end[cut:]}\nafter")
        assert clean == f"a line.{newline}{MARK}\nafter"
    assert Redactor().text(f"a certificate: x\n{end}").startswith("a certificate: ")


def secret_forms(secret: str) -> list[str]:
    """How files and command lines write a secret that they name."""
    quoted = json.dumps(secret)
    return [
        f"password: {secret}",
        f"TOKEN={secret}",
        f"token: |\n  {secret}",
        f"token:\n  - {secret}",
        json.dumps({"password": secret}),
        json.dumps(json.dumps({"password": secret})),
        json.dumps({"name": "API_KEY", "value": secret}),
        json.dumps(["--api-key", secret]),
        "password: '" + secret.replace("'", "''") + "'",
        f"password: {quoted}",
        f"run --token {secret}",
        f"ENV HF_TOKEN {secret}",
        f"machine h login u password {secret}",
        f"https://u:{secret}@h",
    ]


@given(secret=st.from_regex(r"[a-z][A-Za-z0-9,;./+=_@%!$&*()-]{10,30}[a-z]", fullmatch=True))
def test_what_is_planted_under_the_name_of_a_secret_goes_in_every_form(secret: str) -> None:
    left = {form: Redactor().text(form) for form in secret_forms(secret)}
    ends = (secret[:6], secret[-6:])
    assert not {form: text for form, text in left.items() if any(end in text for end in ends)}


def test_addresses_of_people_go_only_where_that_is_wanted() -> None:
    line = "Author: Ann <ann@example.com>"
    assert Redactor().text(line) == line
    assert "ann@example.com" not in Redactor(emails=True).text(line)


def test_every_secret_of_the_state_folder_and_the_environment_is_known(tmp_path: Path) -> None:
    (tmp_path / "passphrase").write_text("correct horse battery\n")
    (tmp_path / "ssh").mkdir()
    (tmp_path / "ssh" / "id_ed25519").write_text(KEY)
    (tmp_path / "ssh" / "id_ed25519.pub").write_text("ssh-ed25519 AAAAPUBLIC me\n")
    cloud = tmp_path / "cloud" / "project-e00"
    cloud.mkdir(parents=True)
    (cloud / "keys.json").write_text(json.dumps({"s3": {"secret_key": "bucket-secret"}}))
    (cloud / "environment").write_text("export AWS_SECRET_ACCESS_KEY='aws-secret-key'\n")
    key_file = tmp_path / "api.key"
    key_file.write_text("service-account-key\n")
    service, google = tmp_path / "service.pem", tmp_path / "google.json"
    service.write_text("nebius-service-key\n")
    google.write_text(json.dumps({"private_key": "google-private", "type": "service"}, indent=1))
    found = known(
        State(tmp_path),
        {
            "HF_TOKEN": "hub-token",
            "NEBIUS_TOKEN_FILE": str(key_file),
            "SOPERATOR_NEBIUS_KEY_FILE": str(service),
            "GOOGLE_APPLICATION_CREDENTIALS": str(google),
            "SOPERATOR_SSH_PUBLIC_KEY_FILE": str(tmp_path / "ssh" / "id_ed25519.pub"),
            "HOME": "/home/me",
        },
    )
    text = " ".join(
        [
            "correct horse battery",
            "bucket-secret",
            "aws-secret-key",
            "hub-token",
            "service-account-key",
            "nebius-service-key",
            "google-private",
            KEY.splitlines()[2],
            "/home/me AAAAPUBLIC",
        ]
    )
    clean = Redactor(found).text(text)
    assert clean.endswith("/home/me AAAAPUBLIC")
    assert set(clean.removesuffix("/home/me AAAAPUBLIC").split()) == {MARK}


def test_what_the_engine_keeps_beside_the_secrets_takes_no_names_out(tmp_path: Path) -> None:
    """With `init --backend file` the states are there: each line of them was a secret."""
    states = tmp_path / "cloud" / "project-e00" / "pulumi" / ".pulumi" / "stacks"
    states.mkdir(parents=True)
    (states / "prod.json").write_text('{\n "secret": "computeinstance-e00abc"\n}')
    (states / "prod.yaml").write_text("id: computefilesystem-e00abc\n")
    keys = {"bucket": "soperator-states", "secret_key": "bucket-secret"}
    (tmp_path / "cloud" / "project-e00" / "keys.json").write_text(json.dumps(keys, indent=1))
    assert known(State(tmp_path), {}) == {"bucket-secret"}


def test_a_file_of_secrets_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    """Password managers give FIFOs: no bundle was ever written in such a shell."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    names = {"A_TOKEN_FILE": str(fifo), "A_SECRET_FILE": str(tmp_path), "B_TOKEN": "b-secret"}
    assert known(State(tmp_path), names) == {"b-secret"}
    (found,) = known(State(tmp_path), {"A_TOKEN_FILE": "/dev/zero"})
    assert len(found) == 64 << 10
