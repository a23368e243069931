//! Decides which addresses are public.
//!
//! Doubtful addresses are not public: an address in any special-purpose range of the IANA registries is refused, and an IPv6
//! address that contains an IPv4 address is judged by that one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `Ok` if `address` is globally routable.
///
/// # Errors
/// The name of the special range that contains the address.
pub fn judge_address(address: IpAddr) -> Result<(), &'static str> {
    match address {
        IpAddr::V4(address) => judge_v4(address),
        IpAddr::V6(address) => judge_v6(address),
    }
}

/// Special IPv4 ranges: network, prefix length, name.
const SPECIAL_V4: &[(Ipv4Addr, u32, &str)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, "this network"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "carrier-grade NAT"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "protocol assignments"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "documentation"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "6to4 relay"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "benchmarking"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "documentation"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

/// Special ranges inside global unicast, `2000::/3`. All other addresses are refused without a table.
const SPECIAL_V6: &[(Ipv6Addr, u32, &str)] = &[
    // Teredo, benchmarking, ORCHID and other assignments.
    (
        Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0),
        23,
        "protocol assignments",
    ),
    (
        Ipv6Addr::new(0x2001, 0x0db8, 0, 0, 0, 0, 0, 0),
        32,
        "documentation",
    ),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "documentation"),
];

fn judge_v4(address: Ipv4Addr) -> Result<(), &'static str> {
    let bits = address.to_bits();
    let special = SPECIAL_V4
        .iter()
        .find(|(net, prefix, _)| (bits ^ net.to_bits()) >> (32 - prefix) == 0);
    special.map_or(Ok(()), |(_, _, name)| Err(*name))
}

fn judge_v6(address: Ipv6Addr) -> Result<(), &'static str> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] => return judge_v4(ipv4_from_words(high, low)),
        [0x0064, 0xff9b, 0, 0, 0, 0, high, low] => return judge_v4(ipv4_from_words(high, low)),
        [0x2002, high, low, ..] => return judge_v4(ipv4_from_words(high, low)),
        [_, _, _, _, 0 | 0x0200, 0x5efe, ..] => return Err("ISATAP"),
        [0, 0, 0, 0, 0, 0, 0, 1] => return Err("loopback"),
        [first, ..] if first & 0xfe00 == 0xfc00 => return Err("unique local"),
        [first, ..] if first & 0xffc0 == 0xfe80 => return Err("link-local"),
        [first, ..] if first & 0xff00 == 0xff00 => return Err("multicast"),
        [first, ..] if first & 0xe000 != 0x2000 => return Err("not global unicast"),
        _ => {}
    }
    let bits = address.to_bits();
    let special = SPECIAL_V6
        .iter()
        .find(|(net, prefix, _)| (bits ^ net.to_bits()) >> (128 - prefix) == 0);
    special.map_or(Ok(()), |(_, _, name)| Err(*name))
}

fn ipv4_from_words(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low))
}
