//! Holds the TLS state of one phase: client configuration towards hosts, and the interceptor.

use belljar_spec::egress::RouteScheme;

use crate::control::Trust;
use crate::inbound::intercept::{InterceptError, Interceptor};
use crate::policy::Policy;
use crate::upstream::roots::{ClientTls, RootsError};

pub(crate) struct TlsContext {
    /// Only where the proxy itself is a TLS client: unread tunnels do not need it.
    pub(crate) client: Option<ClientTls>,
    pub(crate) interceptor: Option<Interceptor>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("cannot create the run's certificate authority")]
    Intercept(#[from] InterceptError),
    #[error(transparent)]
    Roots(#[from] RootsError),
}

impl TlsContext {
    pub(crate) fn new(policy: &Policy) -> Result<Self, TlsError> {
        let interceptor = Interceptor::new(policy)?;
        let routed = policy.spec.routes.iter().any(|route| route.to.scheme == RouteScheme::Https);
        let needed = interceptor.is_some() || routed;
        let client = if needed { Some(ClientTls::from_host()?) } else { None };
        Ok(Self { client, interceptor })
    }

    pub(crate) fn trust(&self) -> Option<Trust> {
        self.interceptor.as_ref().map(Interceptor::trust)
    }
}
