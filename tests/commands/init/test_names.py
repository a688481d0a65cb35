"""Entities identified by field names: people must be found, and nothing else mistaken for one."""

import pytest

from workers.commands.init.names import UserKind, user_kind
from workers.mechanisms.config.views import parse

NAMES: dict[UserKind | None, str] = {
    UserKind.PERSON: (
        "user user_id userId userid userIDs USER_ID user-id usr usr_id uid user.id payload.user.id customer customers "
        "customer_id custId cust_id custid order.customer.id order_customer_id session.user user.name user.email "
        "emailAddress email_hash phoneNumber phone msisdn visitorIds member_no lines[].customer_id context.user.uuid "
        'passenger patientId end_user subscriber.key clientId guest buyer.ref user.details.id distinct_id "$distinct_id" '
        "distinctId amplitude_id domain_userid network_userid visitorId idvisitor ECID mcid visid_high post_visid_low "
        "identity tax-id stripe_customer sender.id author.login rider.phone actor.id profile.user.name owner.uuid"
    ),
    UserKind.ACCOUNT: "account account_id acct acct_no accountNumber user.account.id iban walletId",
    UserKind.DEVICE: "ip client_ip clientIp ipAddress IPAddress context.ip deviceId device_uuid imei user.device.id mac_address "
    'user_pseudo_id anonymousId anonymous_id anonymous-id "$device_id" deviceID user_fingerprint idfa GAID advertisingId '
    "device.advertising_id fcm_token device-token androidId android_id installation_id license_plate remote_addr _ga",
    UserKind.SESSION: "session session_id sessionId sessionid session.id session-id user.session.id cookie sess_id "
    'ga_session_id domain_sessionid "$session_id" context.sessionId',
    UserKind.EVENT: "id order.id order_id orderId customer.order.id request_id traceId event.uuid messageId uuid transactionid "
    'insert_id "$insert_id" gclid click_id tracking_number page_view_id',
    UserKind.TRAIT: "firstName first_name dateOfBirth birthdate billing_address.name street domain_sessionidx ga_session_number",
    None: (
        "event_name event.name user.plan browser_name advertiser_name email_type "
        "sku product.id productId product.name name page shop shop_id store.id user_agent userAgent user_type "
        "customer_segment user.country user.address.city device.type order.total order type event code tags "
        "lines[].sku lines[].id items[].product_id user_count country status sessions_total client_version host value"
    ),
}
CASES = [(name, kind) for kind, names in NAMES.items() for name in names.split()]


@pytest.mark.parametrize(("name", "kind"), CASES, ids=[name for name, _ in CASES])
def test_the_noun_of_a_name_decides_what_it_identifies(
    name: str, kind: UserKind | None
) -> None:
    assert len(CASES) > 60
    assert user_kind(parse(name)) is kind
