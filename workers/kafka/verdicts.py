"""What every error of Kafka's clients means to a worker: one table, used by every handler.

    OUTAGE      nobody's setting: wait, or begin again from the stored state
    MISSING     the broker does not know the topic or partition: deleted, hidden by ACLs, or too new
    FORBIDDEN   a right is missing (deploy/acls.md)
    SETTING     a setting of the worker, a topic, a broker or a producer: waiting does not help
    FENCED      a newer owner, or a newer generation of the consumer group
    BUG         only a defect raises it, or it is not an error at all

Both clients use Kafka's error codes; librdkafka has codes of its own, below 0, and aiokafka has
classes. A code that is not listed comes from a later broker: it is taken for an outage, so that the
worker waits and says so.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType

from aiokafka import errors as aiokafka
from confluent_kafka import KafkaError, KafkaException

from workers.runtime.errors import Fenced, KafkaAway, QuietcountError


class Verdict(Enum):
    OUTAGE = "outage"
    MISSING = "missing"
    FORBIDDEN = "forbidden"
    SETTING = "setting"
    FENCED = "fenced"
    BUG = "bug"


_BY_VERDICT: Mapping[Verdict, tuple[int, ...]] = MappingProxyType(
    {
        Verdict.OUTAGE: (
            # Connections, and the handles of brokers that come and go.
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._RESOLVE,
            KafkaError._FAIL,
            KafkaError._DESTROY,
            KafkaError._DESTROY_BROKER,
            KafkaError._NODE_UPDATE,
            KafkaError._UNKNOWN_BROKER,
            KafkaError._BAD_MSG,
            KafkaError._UNDERFLOW,
            KafkaError._PARTIAL,
            KafkaError.NETWORK_EXCEPTION,
            KafkaError.REBOOTSTRAP_REQUIRED,
            # Answers that are late, and calls that were given up.
            KafkaError._TIMED_OUT,
            KafkaError._MSG_TIMED_OUT,
            KafkaError._TIMED_OUT_QUEUE,
            KafkaError._PURGE_QUEUE,
            KafkaError._PURGE_INFLIGHT,
            KafkaError._QUEUE_FULL,
            KafkaError._ISR_INSUFF,
            KafkaError._WAIT_COORD,
            KafkaError._WAIT_CACHE,
            KafkaError._IN_PROGRESS,
            KafkaError._PREV_IN_PROGRESS,
            KafkaError._INTR,
            KafkaError._RETRY,
            KafkaError._OUTDATED,
            KafkaError._CRIT_SYS_RESOURCE,
            KafkaError._MAX_POLL_EXCEEDED,
            KafkaError.REQUEST_TIMED_OUT,
            KafkaError.THROTTLING_QUOTA_EXCEEDED,
            # Producers that must begin again: the broker lost or ended what they had.
            KafkaError._FATAL,
            KafkaError._STATE,
            KafkaError._INCONSISTENT,
            KafkaError._GAPLESS_GUARANTEE,
            KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
            KafkaError.DUPLICATE_SEQUENCE_NUMBER,
            KafkaError.UNKNOWN_PRODUCER_ID,
            KafkaError.INVALID_PRODUCER_ID_MAPPING,
            KafkaError.INVALID_TXN_STATE,
            KafkaError.CONCURRENT_TRANSACTIONS,
            KafkaError.TRANSACTION_COORDINATOR_FENCED,
            KafkaError.TRANSACTION_ABORTABLE,
            KafkaError.OPERATION_NOT_ATTEMPTED,
            # Brokers that start, end, or elect a leader.
            KafkaError.UNKNOWN,
            KafkaError.BROKER_NOT_AVAILABLE,
            KafkaError.LEADER_NOT_AVAILABLE,
            KafkaError.NOT_LEADER_FOR_PARTITION,
            KafkaError.REPLICA_NOT_AVAILABLE,
            KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
            KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            KafkaError.OFFSET_NOT_AVAILABLE,  # a new leader does not know its high watermark yet
            KafkaError.FENCED_LEADER_EPOCH,
            KafkaError.UNKNOWN_LEADER_EPOCH,
            KafkaError.STALE_CTRL_EPOCH,
            KafkaError.STALE_BROKER_EPOCH,
            KafkaError.NOT_CONTROLLER,
            KafkaError.UNKNOWN_CONTROLLER_ID,
            KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            KafkaError.COORDINATOR_NOT_AVAILABLE,
            KafkaError.NOT_COORDINATOR,
            KafkaError.NOT_ENOUGH_REPLICAS,
            KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            KafkaError.KAFKA_STORAGE_ERROR,
            KafkaError.LOG_DIR_NOT_FOUND,
            KafkaError.LISTENER_NOT_FOUND,
            KafkaError.REASSIGNMENT_IN_PROGRESS,
            KafkaError.FETCH_SESSION_ID_NOT_FOUND,
            KafkaError.INVALID_FETCH_SESSION_EPOCH,
            KafkaError.UNSTABLE_OFFSET_COMMIT,
            # A consumer group between two generations.
            KafkaError.REBALANCE_IN_PROGRESS,
            KafkaError.MEMBER_ID_REQUIRED,
        ),
        Verdict.MISSING: (
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError.UNKNOWN_TOPIC_ID,
            KafkaError.INCONSISTENT_TOPIC_ID,
        ),
        Verdict.FORBIDDEN: (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ),
        Verdict.SETTING: (
            # [kafka.client], and what it names.
            KafkaError._INVALID_ARG,
            KafkaError._FS,
            KafkaError._SSL,
            KafkaError._AUTHENTICATION,
            KafkaError._NOT_CONFIGURED,
            KafkaError._UNKNOWN_PROTOCOL,
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError.UNSUPPORTED_SASL_MECHANISM,
            KafkaError.ILLEGAL_SASL_STATE,
            KafkaError.SECURITY_DISABLED,
            KafkaError.UNACCEPTABLE_CREDENTIAL,
            KafkaError.INVALID_PRINCIPAL_TYPE,
            KafkaError.PRINCIPAL_DESERIALIZATION_FAILURE,
            KafkaError.DELEGATION_TOKEN_AUTH_DISABLED,
            KafkaError.DELEGATION_TOKEN_NOT_FOUND,
            KafkaError.DELEGATION_TOKEN_OWNER_MISMATCH,
            KafkaError.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
            KafkaError.DELEGATION_TOKEN_EXPIRED,
            # Versions and settings of the brokers.
            KafkaError._UNSUPPORTED_FEATURE,
            KafkaError.UNSUPPORTED_VERSION,
            KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
            KafkaError.INVALID_TRANSACTION_TIMEOUT,
            KafkaError.INVALID_REPLICATION_FACTOR,
            KafkaError.INVALID_PARTITIONS,
            KafkaError.INVALID_REPLICA_ASSIGNMENT,
            KafkaError.INVALID_CONFIG,
            KafkaError.INVALID_SESSION_TIMEOUT,
            KafkaError.INCONSISTENT_GROUP_PROTOCOL,
            KafkaError.INVALID_GROUP_ID,
            KafkaError.GROUP_MAX_SIZE_REACHED,
            KafkaError.TOPIC_DELETION_DISABLED,
            KafkaError.OFFSET_METADATA_TOO_LARGE,
            KafkaError.INVALID_COMMIT_OFFSET_SIZE,
            # Settings of a topic, by which a broker refuses a record.
            KafkaError.TOPIC_EXCEPTION,
            KafkaError.MSG_SIZE_TOO_LARGE,
            KafkaError.INVALID_MSG_SIZE,
            KafkaError.RECORD_LIST_TOO_LARGE,
            KafkaError.INVALID_MSG,
            KafkaError.INVALID_RECORD,
            KafkaError._INVALID_DIFFERENT_RECORD,
            KafkaError.INVALID_TIMESTAMP,
            KafkaError.POLICY_VIOLATION,
            # A topic's retention removed what was to be read, or a producer wrote what cannot be.
            KafkaError._AUTO_OFFSET_RESET,
            KafkaError._LOG_TRUNCATION,
            KafkaError.OFFSET_OUT_OF_RANGE,
            KafkaError._BAD_COMPRESSION,
        ),
        Verdict.FENCED: (
            KafkaError._FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
            KafkaError.PRODUCER_FENCED,
            KafkaError._ASSIGNMENT_LOST,
            KafkaError.ILLEGAL_GENERATION,
            KafkaError.UNKNOWN_MEMBER_ID,
            KafkaError.FENCED_INSTANCE_ID,
            KafkaError.FENCED_MEMBER_EPOCH,
            KafkaError.STALE_MEMBER_EPOCH,
            KafkaError.UNRELEASED_INSTANCE_ID,
        ),
        Verdict.BUG: (
            # No errors.
            KafkaError.NO_ERROR,
            KafkaError._PARTITION_EOF,
            KafkaError._ASSIGN_PARTITIONS,
            KafkaError._REVOKE_PARTITIONS,
            KafkaError._NOOP,
            # Calls that this program does not make, or never in this way.
            KafkaError._UNKNOWN_GROUP,
            KafkaError._EXISTING_SUBSCRIPTION,
            KafkaError._CONFLICT,
            KafkaError._NOT_IMPLEMENTED,
            KafkaError._NO_OFFSET,
            KafkaError._NOENT,
            KafkaError._INVALID_TYPE,
            KafkaError._READ_ONLY,
            KafkaError._APPLICATION,
            KafkaError._KEY_SERIALIZATION,
            KafkaError._VALUE_SERIALIZATION,
            KafkaError._KEY_DESERIALIZATION,
            KafkaError._VALUE_DESERIALIZATION,
            KafkaError.INVALID_REQUEST,
            KafkaError.INVALID_REQUIRED_ACKS,
            KafkaError.TOPIC_ALREADY_EXISTS,
            KafkaError.RESOURCE_NOT_FOUND,
            KafkaError.DUPLICATE_RESOURCE,
            KafkaError.NON_EMPTY_GROUP,
            KafkaError.GROUP_ID_NOT_FOUND,
            KafkaError.GROUP_SUBSCRIBED_TO_TOPIC,
            KafkaError.ELECTION_NOT_NEEDED,
            KafkaError.NO_REASSIGNMENT_IN_PROGRESS,
            # Of brokers among themselves, and of clients of other kinds.
            KafkaError.INCONSISTENT_VOTER_SET,
            KafkaError.INVALID_UPDATE_VERSION,
            KafkaError.FEATURE_UPDATE_FAILED,
            KafkaError.INVALID_REGISTRATION,
            KafkaError.INVALID_VOTER_KEY,
            KafkaError.DUPLICATE_VOTER,
            KafkaError.VOTER_NOT_FOUND,
            KafkaError.MISMATCHED_ENDPOINT_TYPE,
            KafkaError.UNSUPPORTED_ENDPOINT_TYPE,
            KafkaError.UNSUPPORTED_ASSIGNOR,
            KafkaError.UNKNOWN_SUBSCRIPTION_ID,
            KafkaError.TELEMETRY_TOO_LARGE,
            KafkaError.INVALID_REGULAR_EXPRESSION,
            KafkaError.INVALID_RECORD_STATE,
            KafkaError.SHARE_SESSION_NOT_FOUND,
            KafkaError.INVALID_SHARE_SESSION_EPOCH,
            KafkaError.SHARE_SESSION_LIMIT_REACHED,
            KafkaError.FENCED_STATE_EPOCH,
            KafkaError.STREAMS_INVALID_TOPOLOGY,
            KafkaError.STREAMS_INVALID_TOPOLOGY_EPOCH,
            KafkaError.STREAMS_TOPOLOGY_FENCED,
        ),
    }
)
#: By Kafka's code, also librdkafka's own.
BY_CODE: Mapping[int, Verdict] = MappingProxyType(
    {code: verdict for verdict, codes in _BY_VERDICT.items() for code in codes}
)
#: aiokafka's classes without a code, or that mean something else there; a subclass counts as its
#: nearest listed base.
BY_CLASS: Mapping[type[BaseException], Verdict] = MappingProxyType(
    {
        # It raises its base class for answers that it did not expect.
        aiokafka.KafkaError: Verdict.OUTAGE,
        aiokafka.NoBrokersAvailable: Verdict.OUTAGE,
        aiokafka.NodeNotReadyError: Verdict.OUTAGE,
        aiokafka.KafkaProtocolError: Verdict.OUTAGE,
        aiokafka.Cancelled: Verdict.OUTAGE,
        aiokafka.TooManyInFlightRequests: Verdict.OUTAGE,
        aiokafka.StaleMetadata: Verdict.OUTAGE,
        aiokafka.MetadataEmptyBrokerList: Verdict.OUTAGE,
        aiokafka.KafkaUnavailableError: Verdict.OUTAGE,
        aiokafka.KafkaTimeoutError: Verdict.OUTAGE,
        aiokafka.KafkaConnectionError: Verdict.OUTAGE,
        aiokafka.ConsumerStoppedError: Verdict.OUTAGE,
        aiokafka.QuotaViolationError: Verdict.OUTAGE,
        aiokafka.UnrecognizedBrokerVersion: Verdict.SETTING,
        aiokafka.IncompatibleBrokerVersion: Verdict.SETTING,
        aiokafka.AuthenticationMethodNotSupported: Verdict.SETTING,
        aiokafka.AuthenticationFailedError: Verdict.SETTING,
        aiokafka.UnsupportedCodecError: Verdict.SETTING,
        aiokafka.KafkaConfigurationError: Verdict.SETTING,
        aiokafka.RecordTooLargeError: Verdict.SETTING,
        aiokafka.NoOffsetForPartitionError: Verdict.SETTING,
        aiokafka.CommitFailedError: Verdict.FENCED,
        aiokafka.ProducerFenced: Verdict.FENCED,
        aiokafka.IllegalStateError: Verdict.BUG,
        aiokafka.IllegalArgumentError: Verdict.BUG,
        aiokafka.IllegalOperation: Verdict.BUG,
        aiokafka.ProducerClosed: Verdict.BUG,
        # Code 2, of a record that it read, not of one that a broker refused.
        aiokafka.CorruptRecordException: Verdict.BUG,
        # A broker's answer with a code that it does not know.
        aiokafka.BrokerResponseError: Verdict.OUTAGE,
    }
)


def cause_of(error: BaseException) -> KafkaError | None:
    """Return librdkafka's error in an exception, if it has one."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, KafkaError) else None


def verdict_of_code(code: int) -> Verdict:
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
    return next(_of_classes(type(error)), None)


def _of_classes(kind: type[BaseException]) -> Iterator[Verdict]:
    code = getattr(kind, "errno", None)
    for base in kind.__mro__:
        if base in BY_CLASS:
            has_code = base is aiokafka.BrokerResponseError and isinstance(code, int)
            yield (
                verdict_of_code(code)
                if has_code and isinstance(code, int)
                else BY_CLASS[base]
            )
