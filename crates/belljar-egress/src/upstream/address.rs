//! Decides which addresses a name may resolve to.
//!
//! Of IPv6 only the known public ranges count as public; an address that embeds an IPv4 address is judged by that
//! one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::policy::AddressScope;

/// Whether a name may resolve to it. An address that a rule names is not checked.
pub(crate) fn is_allowed_address(address: IpAddr, addresses: AddressScope) -> bool {
    match addresses {
        AddressScope::Public => is_public(address),
        AddressScope::Private => is_public(address) || is_private_network(address),
        AddressScope::Literal => true,
    }
}

type Cidr<A> = (A, u32);

/// IANA's special-purpose ranges, and addresses of cloud services.
const NOT_PUBLIC_V4: &[Cidr<Ipv4Addr>] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),        // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),       // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),    // carrier-grade NAT; Alibaba's metadata
    (Ipv4Addr::new(127, 0, 0, 0), 8),      // loopback
    (Ipv4Addr::new(168, 63, 129, 16), 32), // Azure's host services
    (Ipv4Addr::new(169, 254, 0, 0), 16),   // link-local; most clouds' metadata
    (Ipv4Addr::new(172, 16, 0, 0), 12),    // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),     // protocol assignments; Oracle's metadata
    (Ipv4Addr::new(192, 0, 2, 0), 24),     // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24),   // 6to4 relays
    (Ipv4Addr::new(192, 168, 0, 0), 16),   // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),    // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24),  // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),   // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4),      // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),      // reserved, broadcast
];

const GLOBAL_V6: Cidr<Ipv6Addr> = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
const SIX_TO_FOUR: Cidr<Ipv6Addr> = (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16);
const NAT64: Cidr<Ipv6Addr> = (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

/// Exceptions within the global range.
const NOT_PUBLIC_V6: &[Cidr<Ipv6Addr>] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // protocols: Teredo, ORCHID, benchmarks
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
];

const PRIVATE_V4: &[Cidr<Ipv4Addr>] = &[
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
];

const PRIVATE_V6: &[Cidr<Ipv6Addr>] =
    &[(Ipv6Addr::LOCALHOST, 128), (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7)];

/// Cloud services that hand out credentials at addresses within private ranges.
const METADATA_V4: &[Cidr<Ipv4Addr>] = &[(Ipv4Addr::new(100, 100, 100, 200), 32)];
const METADATA_V6: &[Cidr<Ipv6Addr>] = &[
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32), // AWS
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0), 32),  // Google
    (Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0, 0), 32),  // Oracle
    (Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0), 32),  // Scaleway
];

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) if within_v6(address, &NAT64) => is_public_v4(low_v4(address)),
        IpAddr::V6(address) if within_v6(address, &SIX_TO_FOUR) => is_public_v4(middle_v4(address)),
        IpAddr::V6(address) => {
            within_v6(address, &GLOBAL_V6)
                && !NOT_PUBLIC_V6.iter().any(|range| within_v6(address, range))
        }
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !NOT_PUBLIC_V4.iter().any(|range| within_v4(address, range))
}

/// Loopback and private ranges, but never a metadata service.
fn is_private_network(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            PRIVATE_V4.iter().any(|range| within_v4(address, range))
                && !METADATA_V4.iter().any(|range| within_v4(address, range))
        }
        IpAddr::V6(address) => {
            PRIVATE_V6.iter().any(|range| within_v6(address, range))
                && !METADATA_V6.iter().any(|range| within_v6(address, range))
        }
    }
}

fn within_v4(address: Ipv4Addr, (base, length): &Cidr<Ipv4Addr>) -> bool {
    let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
    address.to_bits() & mask == base.to_bits() & mask
}

fn within_v6(address: Ipv6Addr, (base, length): &Cidr<Ipv6Addr>) -> bool {
    let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
    address.to_bits() & mask == base.to_bits() & mask
}

fn low_v4(address: Ipv6Addr) -> Ipv4Addr {
    Ipv4Addr::from_bits(address.to_bits() as u32)
}

/// The 32 bits after the first 16.
fn middle_v4(address: Ipv6Addr) -> Ipv4Addr {
    Ipv4Addr::from_bits((address.to_bits() >> 80) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(text: &str, addresses: AddressScope) -> bool {
        is_allowed_address(text.parse().unwrap(), addresses)
    }

    const PUBLIC: &[&str] = &[
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "93.184.216.34",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "168.63.129.15",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "192.88.98.255",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2a00:1450::1",
        "2001:200::1",
        "2001:4860:4860::8888",
        "3ffe:ffff::1",
        "64:ff9b::1.1.1.1",
        "2002:101:101::1",
    ];

    const PRIVATE: &[&str] = &[
        "127.0.0.1",
        "127.255.255.255",
        "10.0.0.1",
        "10.255.255.255",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "100.64.0.1",
        "100.127.255.255",
        "::1",
        "fc00::1",
        "fd12:3456::1",
    ];

    const FORBIDDEN: &[&str] = &[
        "0.0.0.0",
        "0.1.2.3",
        "169.254.169.254",
        "169.254.170.2",
        "169.254.0.1",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::2",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:1.1.1.1",
        "::ffff:0:1.1.1.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::1.1.1.1",
        "100::1",
        "2001::1",
        "2001:0:4136:e378::1",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "2002:a00:1::1",
        "2002:c0a8:101::1",
        "2002:a9fe:a9fe::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fd00:c1::a9fe:a9fe",
        "fd00:42::42",
        "fe80::1",
        "fe80::a9fe:a9fe",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    ];

    #[test]
    fn a_public_name_resolves_to_public_addresses_only() {
        for good in PUBLIC {
            assert!(allowed(good, AddressScope::Public), "{good}");
        }
        for bad in PRIVATE.iter().chain(FORBIDDEN) {
            assert!(!allowed(bad, AddressScope::Public), "{bad}");
        }
    }

    #[test]
    fn the_private_network_excludes_metadata_services() {
        for good in PRIVATE.iter().chain(PUBLIC) {
            assert!(allowed(good, AddressScope::Private), "{good}");
        }
        for bad in FORBIDDEN {
            assert!(!allowed(bad, AddressScope::Private), "{bad}");
        }
    }
}
