"""One description of the cluster for every client, and no client with too little security."""

import ssl

import pytest
from confluent_kafka import KafkaError
from faust.auth import GSSAPICredentials, SASLCredentials, SSLCredentials

from workers.kafka.clients import Connection, faust_credentials, unreached
from workers.runtime.errors import SettingsError
from workers.settings.files import CLIENT_RESERVED

SASL_SSL = {"security.protocol": "sasl_ssl"}
SASL = {
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "quiet",
    "sasl.password": "hush-hush",
}


def test_operator_settings_reach_every_client() -> None:
    """[kafka.client] is librdkafka's own vocabulary."""
    connection = Connection(
        "a:1,b:2", {"socket.keepalive.enable": "true", "retries": "7"}
    )
    config = connection.config(x="y")
    assert config["bootstrap.servers"] == "a:1,b:2"
    assert (config["socket.keepalive.enable"], config["retries"], config["x"]) == (
        "true",
        "7",
        "y",
    )


@pytest.mark.parametrize("name", sorted(CLIENT_RESERVED))
def test_settings_the_worker_depends_on_cannot_be_changed(name: str) -> None:
    """An operator who sets isolation.level would break exactly-once without knowing."""
    with pytest.raises(SettingsError, match=name):
        Connection("a:1", {name: "x"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("security.protocl", 'did you mean "security.protocol"'),
        ("sasl.usrname", 'did you mean "sasl.username"'),
        ("fetch.wait.max", 'did you mean "fetch.wait.max.ms"'),
        ("xyzzy", "its documentation lists them"),
    ],
)
def test_an_option_that_librdkafka_does_not_know_is_named_with_the_nearest(
    name: str, hint: str
) -> None:
    with pytest.raises(SettingsError, match=rf"kafka\.client\.{name}: .*{hint}"):
        Connection("a:1", {name: "x"}).consumer()


def test_secrets_are_not_in_the_repr() -> None:
    assert "hush" not in repr(Connection("a:1", SASL))


def test_an_empty_address_is_refused() -> None:
    """librdkafka would wait forever for an unnamed broker."""
    with pytest.raises(SettingsError, match=r"kafka\.bootstrap"):
        Connection("  ")


def test_plaintext_needs_no_credentials() -> None:
    assert faust_credentials(Connection("a:1")) is None


def test_tls_is_verified_unless_switched_off() -> None:
    """Both libraries verify by default; switching it off must be explicit and hold for both."""

    def context(**settings: str) -> ssl.SSLContext:
        client = {name.replace("_", "."): value for name, value in settings.items()}
        found = faust_credentials(
            Connection("a:1", {"security.protocol": "SSL", **client})
        )
        assert isinstance(found, SSLCredentials)
        return found.context

    found = context()
    assert (found.verify_mode, found.check_hostname) == (ssl.CERT_REQUIRED, True)
    # librdkafka's word for the system's certificates
    assert context(ssl_ca_location="probe").verify_mode == ssl.CERT_REQUIRED
    found = context(ssl_endpoint_identification_algorithm="none")
    assert (found.verify_mode, found.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert (
        context(enable_ssl_certificate_verification="false").verify_mode
        == ssl.CERT_NONE
    )


def test_passwords_reach_the_faust_consumer() -> None:
    """The consumer is another library and must log in as the producers do."""
    found = faust_credentials(
        Connection("a:1", {"security.protocol": "sasl_ssl", **SASL})
    )
    assert isinstance(found, SASLCredentials)
    assert (found.protocol.value, found.mechanism.value) == (
        "SASL_SSL",
        "SCRAM-SHA-512",
    )
    assert (found.username, found.password) == ("quiet", "hush-hush")
    assert found.ssl_context is not None
    plain = faust_credentials(
        Connection("a:1", {"security.protocol": "sasl_plaintext", **SASL})
    )
    assert isinstance(plain, SASLCredentials)
    assert plain.protocol.value == "SASL_PLAINTEXT"


def test_kerberos_is_the_mechanism_unless_another_is_named() -> None:
    """librdkafka's default."""
    found = faust_credentials(
        Connection("a:1", {"security.protocol": "sasl_plaintext"})
    )
    assert isinstance(found, GSSAPICredentials)


@pytest.mark.parametrize(
    ("client", "named"),
    [
        ({"security.protocol": "tls"}, "security.protocol = 'tls'"),
        (SASL_SSL | {"sasl.mechanism": "DIGEST-MD5"}, "sasl.mechanism = 'DIGEST-MD5'"),
        (SASL_SSL | {"sasl.mechanism": "PLAIN", "sasl.username": "u"}, "sasl.password"),
        (
            {"security.protocol": "ssl", "ssl.keystore.location": "x"},
            "ssl.keystore.location",
        ),
        ({"security.protocol": "ssl", "ssl.ca.location": "/nonexistent"}, r"ssl\.\*"),
    ],
)
def test_security_that_cannot_be_translated_is_refused(
    client: dict[str, str], named: str
) -> None:
    """Ignoring one of these would connect with less security than requested."""
    with pytest.raises(SettingsError, match=named):
        faust_credentials(Connection("a:1", client))


def test_the_brokers_that_a_client_did_not_reach_are_known_from_its_errors() -> None:
    """While a request waits for one that refuses connections, librdkafka connects without a pause."""
    refused = "Connect to ipv4#10.0.0.3:9092 failed: Connection refused (after 0ms in state CONNECT)"
    errors = [
        KafkaError(KafkaError._TRANSPORT, f"kafka-3:9092/3: {refused}"),
        KafkaError(KafkaError._TRANSPORT, f"sasl_ssl://kafka-12:9093/12: {refused}"),
        KafkaError(KafkaError._TRANSPORT, f"kafka-1:9092/bootstrap: {refused}"),
        KafkaError(KafkaError._TIMED_OUT, f"kafka-5:9092/5: {refused}"),
    ]
    assert unreached(errors) == {3, 12}
