use clawk_kernel::ports::Delivery;

use super::MessageRefusal::{Final, Later, Other};
use super::{NOT_MEMBER, SOON_MS};

#[test]
fn a_refusal_becomes_a_delivery_with_the_platforms_words() {
    let later = Later(Some(SOON_MS));
    let waits = |delivery| match delivery {
        Some(Delivery::Retry { after_ms, .. }) => after_ms,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        waits(later.delivery_after(Some(7), "slow")),
        Some(7),
        "the platform's own wait counts"
    );
    assert_eq!(waits(later.delivery_after(None, "slow")), Some(SOON_MS));
    let dead = Final(NOT_MEMBER)
        .delivery_after(None, "not_in_channel\u{7}")
        .unwrap();
    assert_eq!(
        dead,
        Delivery::Failed {
            reason: "the bot is not in the chat (not_in_channel)".to_owned()
        }
    );
    assert_eq!(Other.delivery_after(None, "x"), None);
}
