//! Helpers for unit tests: a proxy whose hosts are servers on loopback.

pub(crate) mod client;
pub(crate) mod dns;
mod origin;

use std::sync::Arc;
use std::time::Duration;

use belljar_spec::Host;
use belljar_spec::egress::{EgressEvent, EgressPolicy, EgressSpec, SecretValue};
use rustls::RootCertStore;

pub(crate) use self::client::{Client, H1, H2};
pub(crate) use self::origin::{Ca, Origin, ServerProtocol};
use crate::inbound::intercept::Interceptor;
use crate::policy::Policy;
use crate::proxy::Proxy;
use crate::report::Reporter;
use crate::upstream::roots::ClientTls;
use crate::upstream::tls::TlsContext;

pub(crate) struct TestProxy {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) tls: Arc<TlsContext>,
    reporter: Reporter,
}

impl TestProxy {
    pub(crate) fn new(ca: &Ca, spec: EgressSpec, secrets: &[(&str, &str)]) -> Self {
        Self::allowing(ca, &[], spec, secrets)
    }

    pub(crate) fn allowing(
        ca: &Ca,
        allow: &[&str],
        spec: EgressSpec,
        secrets: &[(&str, &str)],
    ) -> Self {
        let allow = allow.iter().map(|rule| (*rule).to_owned()).collect();
        let policy =
            Policy::new(EgressPolicy { run: "r".into(), allow, setup: None, spec }).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(ca.der()).unwrap();
        let client = Some(ClientTls::with_roots(roots).unwrap());
        let interceptor = Interceptor::new(&policy).unwrap();
        let secrets = secrets.iter().map(|(env, value)| secret(env, value)).collect();
        let reporter = Reporter::default();
        let proxy = Proxy::new(policy, secrets, reporter.clone());
        Self { proxy, tls: Arc::new(TlsContext { client, interceptor }), reporter }
    }

    /// All events up to one that matches.
    pub(crate) async fn wait_for_events(
        &self,
        last: impl Fn(&EgressEvent) -> bool,
    ) -> Vec<EgressEvent> {
        let mut all = Vec::new();
        for _ in 0..200 {
            all.extend(self.reporter.take_all());
            if all.iter().any(&last) {
                return all;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no such event: {all:?}");
    }
}

pub(crate) fn secret(env: &str, value: &str) -> SecretValue {
    let placeholder = format!("placeholder-{env}");
    SecretValue { env: env.into(), value: value.into(), placeholder }
}

pub(crate) fn host(text: &str) -> Host {
    Host::parse(text.as_bytes()).unwrap()
}
