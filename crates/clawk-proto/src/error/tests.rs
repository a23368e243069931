//! CKP §9.4 and runtime profile §4: the table, number by number.

use std::collections::HashSet;

use super::ErrorCode;

#[test]
fn the_table_is_the_protocols() {
    let expected = [
        (-32700, "Parse error"),
        (-32600, "Invalid request"),
        (-32601, "Method not found"),
        (-32602, "Invalid params"),
        (-32603, "Internal error"),
        (-32001, "Protocol version not supported"),
        (-32010, "Sandbox denied"),
        (-32011, "Policy denied"),
        (-32012, "Approval timeout"),
        (-32013, "Approval denied"),
        (-32014, "Tool execution timeout"),
        (-32020, "Provider unavailable"),
        (-32021, "Provider quota exceeded"),
        (-32030, "Memory backend error"),
        (-32031, "Memory query failed"),
        (-32040, "Peer unreachable"),
        (-32041, "Peer task failed"),
        (-32050, "Channel auth failed"),
        (-32051, "Channel rate limited"),
        (-32060, "Manifest invalid"),
        (-32061, "Primitive not found"),
    ];
    let table: Vec<(i64, &str)> = ErrorCode::ALL
        .iter()
        .map(|code| (code.code(), code.title()))
        .collect();
    assert_eq!(table, expected);
    assert_eq!(
        table.iter().map(|(code, _)| code).collect::<HashSet<_>>().len(),
        expected.len()
    );
    for code in ErrorCode::ALL {
        assert_eq!(ErrorCode::from_code(code.code()), Some(*code));
    }
    assert_eq!(ErrorCode::from_code(-32099), None);
}

#[test]
fn what_may_have_happened_is_never_called_clean() {
    for code in [
        ErrorCode::ToolTimeout,
        ErrorCode::Internal,
        ErrorCode::PeerFailed,
        ErrorCode::MemoryBackend,
    ] {
        assert!(!code.surely_no_side_effects());
    }
    for code in [
        ErrorCode::PolicyDenied,
        ErrorCode::SandboxDenied,
        ErrorCode::ApprovalDenied,
        ErrorCode::QuotaExceeded,
    ] {
        assert!(code.surely_no_side_effects());
        assert!(!code.retryable());
    }
}
