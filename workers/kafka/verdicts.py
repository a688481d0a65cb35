"""What every error of Kafka's clients means to a worker: one table, used by every handler.

    OUTAGE      nobody's setting: wait, or begin again from the stored state
    MISSING     the broker does not know the topic or partition: deleted, hidden by ACLs, or too new
    FORBIDDEN   a right is missing (deploy/acls.md)
    SETTING     a setting of the worker, a topic, a broker or a producer: waiting does not help
    FENCED      a newer owner, or a newer generation of the consumer group
    BUG         only a defect raises it, or it is not an error at all

Both clients use Kafka's error codes; librdkafka has codes of its own, below 0, and aiokafka has
classes. A code that is not listed is taken for an outage, so that the worker waits and says so:
connections, late answers, elections, groups between two generations, producers whose state a broker
lost, and what a later broker may add. tests/kafka/test_verdicts.py lists them.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from aiokafka import errors as aiokafka
from confluent_kafka import KafkaError, KafkaException

from workers.runtime.errors import Fenced, KafkaAway, QuietcountError


class Verdict(Enum):
    """What an error means; see the module's table."""

    OUTAGE = "outage"
    MISSING = "missing"
    FORBIDDEN = "forbidden"
    SETTING = "setting"
    FENCED = "fenced"
    BUG = "bug"


#: Names of Kafka's codes, and of librdkafka's own.
_NAMES: Mapping[Verdict, tuple[str, ...]] = MappingProxyType(
    {
        Verdict.MISSING: (
            "_UNKNOWN_TOPIC",
            "_UNKNOWN_PARTITION",
            "UNKNOWN_TOPIC_OR_PART",
            "UNKNOWN_TOPIC_ID",
            "INCONSISTENT_TOPIC_ID",
        ),
        Verdict.FORBIDDEN: (
            "TOPIC_AUTHORIZATION_FAILED",
            "GROUP_AUTHORIZATION_FAILED",
            "CLUSTER_AUTHORIZATION_FAILED",
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
        ),
        Verdict.SETTING: (
            # [kafka.client], and what it names.
            "_INVALID_ARG",
            "_FS",
            "_SSL",
            "_AUTHENTICATION",
            "_NOT_CONFIGURED",
            "_UNKNOWN_PROTOCOL",
            "SASL_AUTHENTICATION_FAILED",
            "UNSUPPORTED_SASL_MECHANISM",
            "ILLEGAL_SASL_STATE",
            "SECURITY_DISABLED",
            "UNACCEPTABLE_CREDENTIAL",
            "INVALID_PRINCIPAL_TYPE",
            "PRINCIPAL_DESERIALIZATION_FAILURE",
            "DELEGATION_TOKEN_AUTH_DISABLED",
            "DELEGATION_TOKEN_NOT_FOUND",
            "DELEGATION_TOKEN_OWNER_MISMATCH",
            "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
            "DELEGATION_TOKEN_EXPIRED",
            # Versions and settings of the brokers.
            "_UNSUPPORTED_FEATURE",
            "UNSUPPORTED_VERSION",
            "UNSUPPORTED_FOR_MESSAGE_FORMAT",
            "UNSUPPORTED_COMPRESSION_TYPE",
            "INVALID_TRANSACTION_TIMEOUT",
            "INVALID_REPLICATION_FACTOR",
            "INVALID_PARTITIONS",
            "INVALID_REPLICA_ASSIGNMENT",
            "INVALID_CONFIG",
            "INVALID_SESSION_TIMEOUT",
            "INCONSISTENT_GROUP_PROTOCOL",
            "INVALID_GROUP_ID",
            "GROUP_MAX_SIZE_REACHED",
            "TOPIC_DELETION_DISABLED",
            "OFFSET_METADATA_TOO_LARGE",
            "INVALID_COMMIT_OFFSET_SIZE",
            # Settings of a topic, by which a broker refuses a record.
            "TOPIC_EXCEPTION",
            "MSG_SIZE_TOO_LARGE",
            "INVALID_MSG_SIZE",
            "RECORD_LIST_TOO_LARGE",
            "INVALID_MSG",
            "INVALID_RECORD",
            "_INVALID_DIFFERENT_RECORD",
            "INVALID_TIMESTAMP",
            "POLICY_VIOLATION",
            # A topic's retention removed what was to be read, or a producer wrote what cannot be.
            "_AUTO_OFFSET_RESET",
            "_LOG_TRUNCATION",
            "OFFSET_OUT_OF_RANGE",
            "_BAD_COMPRESSION",
        ),
        Verdict.FENCED: (
            "_FENCED",
            "INVALID_PRODUCER_EPOCH",
            "PRODUCER_FENCED",
            "_ASSIGNMENT_LOST",
            "ILLEGAL_GENERATION",
            "UNKNOWN_MEMBER_ID",
            "FENCED_INSTANCE_ID",
            "FENCED_MEMBER_EPOCH",
            "STALE_MEMBER_EPOCH",
            "UNRELEASED_INSTANCE_ID",
        ),
        Verdict.BUG: (
            # No errors.
            "NO_ERROR",
            "_PARTITION_EOF",
            "_ASSIGN_PARTITIONS",
            "_REVOKE_PARTITIONS",
            "_NOOP",
            # Calls that this program does not make, or never in this way.
            "_UNKNOWN_GROUP",
            "_EXISTING_SUBSCRIPTION",
            "_CONFLICT",
            "_NOT_IMPLEMENTED",
            "_NO_OFFSET",
            "_NOENT",
            "_INVALID_TYPE",
            "_READ_ONLY",
            "_APPLICATION",
            "_KEY_SERIALIZATION",
            "_VALUE_SERIALIZATION",
            "_KEY_DESERIALIZATION",
            "_VALUE_DESERIALIZATION",
            "INVALID_REQUEST",
            "INVALID_REQUIRED_ACKS",
            "TOPIC_ALREADY_EXISTS",
            "RESOURCE_NOT_FOUND",
            "DUPLICATE_RESOURCE",
            "NON_EMPTY_GROUP",
            "GROUP_ID_NOT_FOUND",
            "GROUP_SUBSCRIBED_TO_TOPIC",
            "ELECTION_NOT_NEEDED",
            "NO_REASSIGNMENT_IN_PROGRESS",
            # Of brokers among themselves, and of clients of other kinds.
            "INCONSISTENT_VOTER_SET",
            "INVALID_UPDATE_VERSION",
            "FEATURE_UPDATE_FAILED",
            "INVALID_REGISTRATION",
            "INVALID_VOTER_KEY",
            "DUPLICATE_VOTER",
            "VOTER_NOT_FOUND",
            "MISMATCHED_ENDPOINT_TYPE",
            "UNSUPPORTED_ENDPOINT_TYPE",
            "UNSUPPORTED_ASSIGNOR",
            "UNKNOWN_SUBSCRIPTION_ID",
            "TELEMETRY_TOO_LARGE",
            "INVALID_REGULAR_EXPRESSION",
            "INVALID_RECORD_STATE",
            "SHARE_SESSION_NOT_FOUND",
            "INVALID_SHARE_SESSION_EPOCH",
            "SHARE_SESSION_LIMIT_REACHED",
            "FENCED_STATE_EPOCH",
            "STREAMS_INVALID_TOPOLOGY",
            "STREAMS_INVALID_TOPOLOGY_EPOCH",
            "STREAMS_TOPOLOGY_FENCED",
        ),
    }
)
#: By Kafka's code, also librdkafka's own.
BY_CODE: Mapping[int, Verdict] = MappingProxyType(
    {
        int(getattr(KafkaError, name)): verdict
        for verdict, names in _NAMES.items()
        for name in names
    }
)
#: aiokafka's classes without a code, or that mean something else there; a subclass counts as its
#: nearest listed base.
_CLASSES: Mapping[Verdict, tuple[type[BaseException], ...]] = MappingProxyType(
    {
        Verdict.OUTAGE: (
            # It raises its base class for answers that it did not expect.
            aiokafka.KafkaError,
            aiokafka.NoBrokersAvailable,
            aiokafka.NodeNotReadyError,
            aiokafka.KafkaProtocolError,
            aiokafka.Cancelled,
            aiokafka.TooManyInFlightRequests,
            aiokafka.StaleMetadata,
            aiokafka.MetadataEmptyBrokerList,
            aiokafka.KafkaUnavailableError,
            aiokafka.KafkaTimeoutError,
            aiokafka.KafkaConnectionError,
            aiokafka.ConsumerStoppedError,
            aiokafka.QuotaViolationError,
            # A broker's answer with a code that it does not know.
            aiokafka.BrokerResponseError,
        ),
        Verdict.SETTING: (
            aiokafka.UnrecognizedBrokerVersion,
            aiokafka.IncompatibleBrokerVersion,
            aiokafka.AuthenticationMethodNotSupported,
            aiokafka.AuthenticationFailedError,
            aiokafka.UnsupportedCodecError,
            aiokafka.KafkaConfigurationError,
            aiokafka.RecordTooLargeError,
            aiokafka.NoOffsetForPartitionError,
        ),
        Verdict.FENCED: (
            aiokafka.CommitFailedError,
            aiokafka.ProducerFenced,
        ),
        Verdict.BUG: (
            aiokafka.IllegalStateError,
            aiokafka.IllegalArgumentError,
            aiokafka.IllegalOperation,
            aiokafka.ProducerClosed,
            # Code 2, of a record that it read, not of one that a broker refused.
            aiokafka.CorruptRecordException,
        ),
    }
)
BY_CLASS: Mapping[type[BaseException], Verdict] = MappingProxyType(
    {kind: verdict for verdict, kinds in _CLASSES.items() for kind in kinds}
)


def cause_of(error: BaseException) -> KafkaError | None:
    """Return librdkafka's error in an exception, if it has one."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, KafkaError) else None


def verdict_of_code(code: int) -> Verdict:
    """Return what a code means; one that is not listed is taken for an outage."""
    return BY_CODE.get(code, Verdict.OUTAGE)


def verdict_of(error: BaseException) -> Verdict | None:
    """Return what an exception means; None if it is neither Kafka's nor about Kafka."""
    if isinstance(error, KafkaAway | TimeoutError | ConnectionError):
        return Verdict.OUTAGE
    if isinstance(error, Fenced):
        return Verdict.FENCED
    if isinstance(error, QuietcountError):
        return None
    if isinstance(error, KafkaException):
        cause = cause_of(error)
        return Verdict.BUG if cause is None else verdict_of_code(cause.code())
    return _verdict_of_class(type(error))


def _verdict_of_class(kind: type[BaseException]) -> Verdict | None:
    """Return what a class of aiokafka's means: its nearest listed base, or a broker's code."""
    code = getattr(kind, "errno", None)
    for base in kind.__mro__:
        if base is aiokafka.BrokerResponseError and isinstance(code, int):
            return verdict_of_code(code)
        if base in BY_CLASS:
            return BY_CLASS[base]
    return None
