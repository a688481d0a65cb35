"""A Kafka broker with TLS, SCRAM-SHA-512 and default-deny ACLs; tests set up as its super-user."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exports
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.admin import admin_of
from tests.broker import free_ports, local_broker
from tests.kafka.harness import await_all, wait_until
from workers.kafka.clients import Connection

MECHANISM = "SCRAM-SHA-512"
PROPERTIES = """\
listeners=PLAINTEXT://127.0.0.1:{{port}},SECURE://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{{controller}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SECURE://localhost:{secure}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=false
"""


@dataclass(frozen=True)
class Secure:
    """The running broker: its addresses for TLS and SCRAM and for the super-user (`inside`).

    `ca` is the certificate of the authority that signed the broker's, `other_ca` another one's.
    """

    bootstrap: str
    inside: str
    ca: Path
    other_ca: Path

    def connection(self) -> Connection:
        return Connection(self.inside)

    def add_user(self, name: str, password: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = UserScramCredentialUpsertion(name, info, password.encode())
        await_all(admin_of(self.connection()).alter_user_scram_credentials([wanted]))

    def allow(self, rules: list[Rule], user: str) -> None:
        pattern = ResourcePatternType
        who = f"User:{user}"
        bindings = [
            AclBinding(
                ResourceType[rule.resource.upper().replace("-", "_")],
                rule.name.removesuffix("*"),
                pattern.PREFIXED if rule.name.endswith("*") else pattern.LITERAL,
                who,
                "*",
                AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for rule in rules
            for operation in rule.operations
        ]
        admin = admin_of(self.connection())
        await_all(admin.create_acls(bindings))
        # The controller has accepted the rules; the broker itself follows, and it accepted the user
        # before.
        any_one: Any = None  # as librdkafka has it; its types say otherwise
        what = ResourceType.ANY, any_one, ResourcePatternType.ANY
        every = AclBindingFilter(
            *what, who, any_one, AclOperation.ANY, AclPermissionType.ANY
        )
        wait_until(
            lambda: {*bindings} <= {*admin.describe_acls(every).result(120)},
            f"rights of {user}",
        )


@dataclass(frozen=True)
class Rule:
    """One row of the table of ACLs; a name that ends with * is a prefix."""

    resource: str
    name: str
    operations: tuple[str, ...]


def rules_of(document: Path, role: str, names: Mapping[str, str]) -> list[Rule]:
    """Return the rows of a role in the document's table, with `<placeholders>` filled in.

    A row: | role | resource | `name` | operations | ... |
    """
    found = []
    for line in document.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] == role:
            name = re.sub(
                r"<[^>]+>", lambda match: names[match[0]], cells[2].strip("`")
            )
            operations = tuple(
                re.sub(r"(?<!^)(?=[A-Z])", "_", operation.strip()).upper()
                for operation in cells[3].split(",")
            )
            found.append(Rule(cells[1], name, operations))
    return found


@contextmanager
def secure_broker(directory: Path) -> Iterator[Secure]:
    """Run the broker; write keys and certificates to `directory`."""
    ca, other_ca, keystore = write_certificates(directory)
    [port] = free_ports(1)
    with local_broker(PROPERTIES.format(secure=port, keystore=keystore)) as inside:
        yield Secure(f"localhost:{port}", inside, ca, other_ca)


def write_certificates(directory: Path) -> tuple[Path, Path, Path]:
    """Return the authority's certificate, another one's, and key and certificate of localhost."""
    authority, key = _authority("Quietcount tests")
    other, _ = _authority("Somebody else")
    names = ("ca.pem", "other-ca.pem", "broker.pem")
    ca, other_ca, keystore = (directory / name for name in names)
    ca.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    other_ca.write_bytes(other.public_bytes(serialization.Encoding.PEM))
    keystore.write_bytes(_signed(authority, key))
    return ca, other_ca, keystore


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: str, issuer: str, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=2))
    )


def _authority(name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # Only to sign certificates, and lists of revoked ones.
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    made = (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    return made, key


def _signed(authority: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bytes:
    own = ec.generate_private_key(ec.SECP256R1())
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    certificate = (
        _builder("localhost", "Quietcount tests", own)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(issuer, critical=False)
        .sign(key, hashes.SHA256())
    )
    private = own.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    encode = serialization.Encoding.PEM
    return private + certificate.public_bytes(encode) + authority.public_bytes(encode)
