//! Creates the certificate authority of one run.
//!
//! It exists in memory only, and its name constraints limit it to the hosts that this run's proxy may intercept.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use belljar_spec::Host;
use belljar_spec::host_rule::{HostPattern, HostRule};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
    PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};

use super::InterceptError;
use crate::policy::Policy;

/// A clock inside a virtual machine may be behind.
const BEFORE: Duration = Duration::from_secs(60 * 60);
const AFTER: Duration = Duration::from_secs(30 * 24 * 60 * 60);

pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
}

/// Hosts whose TLS the proxy may terminate; empty where it intercepts nothing.
pub(super) fn names(policy: &Policy) -> Result<Vec<HostPattern>, InterceptError> {
    let mut names = Vec::new();
    for text in &policy.spec.intercept {
        names.push(HostRule::parse(text).map_err(InterceptError::Rule)?.hosts);
    }
    for secret in &policy.spec.secrets {
        if policy.intercepts(&secret.host, secret.port) {
            names.push(HostPattern::Host(secret.host.clone()));
        }
    }
    Ok(names)
}

impl Authority {
    pub(super) fn new(names: &[HostPattern]) -> Result<Self, InterceptError> {
        let mut params = params()?;
        params.distinguished_name.push(DnType::CommonName, "Belljar, for one run");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.name_constraints = Some(constraints(names));
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.self_signed(&key)?;
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    pub(super) fn pem(&self) -> String {
        self.certificate.pem()
    }

    pub(super) fn leaf(&self, host: &Host, key: &KeyPair) -> Result<Certificate, InterceptError> {
        let mut params = params()?;
        params.distinguished_name.push(DnType::CommonName, "Belljar, for one host");
        params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into()?),
            Host::Address(address) => SanType::IpAddress(*address),
        }];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true; // required by Python 3.13
        Ok(params.signed_by(key, &self.issuer)?)
    }
}

fn params() -> Result<CertificateParams, InterceptError> {
    let mut params = CertificateParams::default();
    let now = SystemTime::now();
    params.not_before = (now - BEFORE).into();
    params.not_after = (now + AFTER).into();
    params.distinguished_name = rcgen::DistinguishedName::new();
    // The default is derived from the key, which all leaf certificates share, and some clients refuse a repeated
    // serial.
    let mut serial = [0; 16];
    getrandom::fill(&mut serial).map_err(|_| InterceptError::Random)?;
    serial[0] = serial[0] & 0x3f | 0x40; // positive, and always of the same length
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}

/// Constraints apply to each kind of name separately: a kind with no permitted name is excluded as a whole.
fn constraints(names: &[HostPattern]) -> NameConstraints {
    let (mut permitted, mut excluded) = (Vec::new(), Vec::new());
    let any = names.contains(&HostPattern::Any);
    let (mut some_name, mut some_address) = (any, false);
    for pattern in names {
        match pattern {
            HostPattern::Any => {}
            // Subdomains are always permitted too: a constraint cannot name a single host.
            HostPattern::Below(name) | HostPattern::Host(Host::Name(name)) => {
                some_name = true;
                if !any {
                    permitted.push(GeneralSubtree::DnsName(name.clone()));
                }
            }
            HostPattern::Host(Host::Address(address)) => {
                some_address = true;
                let whole = if address.is_ipv4() { 32 } else { 128 };
                let one = CidrSubnet::from_addr_prefix(*address, whole);
                permitted.push(GeneralSubtree::IpAddress(one));
            }
        }
    }
    if !some_name {
        excluded.push(GeneralSubtree::DnsName(String::new()));
    }
    if !some_address {
        for all in [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()] {
            excluded.push(GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(all, 0)));
        }
    }
    NameConstraints { permitted_subtrees: permitted, excluded_subtrees: excluded }
}
