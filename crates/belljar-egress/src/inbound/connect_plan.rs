//! Chooses how a tunnel is served: relayed unread, intercepted as TLS, or read as plain HTTP.

use std::sync::Arc;

use belljar_spec::Host;
use belljar_spec::egress::{Scheme, Via};
use belljar_spec::host_rule::Seen;

use crate::http::headers::Target;
use crate::inbound::intercept;
use crate::inbound::plain_tunnel;
use crate::inbound::tunnel::Tunnel;
use crate::io::stream::Stream;
use crate::proxy::{AccessRequest, Proxy, Refusal};
use crate::upstream::tls::TlsContext;

#[derive(Debug)]
pub(crate) enum ConnectPlan {
    Blind(Box<Tunnel>),
    /// The proxy terminates TLS and decides about each request in it.
    Intercepted {
        proxy: Arc<Proxy>,
        host: Host,
        port: u16,
    },
    /// To port 80: the proxy reads plain HTTP and decides about each request.
    Plain {
        proxy: Arc<Proxy>,
        host: Host,
        via: Via,
    },
}

const PLAIN_PORT: u16 = 80;

impl ConnectPlan {
    pub(crate) async fn open(
        proxy: &Arc<Proxy>,
        host: Host,
        port: u16,
        via: Via,
    ) -> Result<Self, Refusal> {
        let policy = proxy.policy();
        let intercepts = policy.intercepts(&host, port);
        if !intercepts && port != PLAIN_PORT {
            let tunnel = Tunnel::open(proxy, host, port, via).await?;
            return Ok(Self::Blind(Box::new(tunnel)));
        }
        if let Err(denial) = policy.may_allow(&host, port) {
            let access = AccessRequest { host, port, via, seen: Seen::Nothing };
            return Err(proxy.deny(&access, denial));
        }
        let proxy = proxy.clone();
        Ok(match intercepts {
            true => Self::Intercepted { proxy, host, port },
            false => Self::Plain { proxy, host, via },
        })
    }

    /// Serves the tunnel until it ends. `prefix` was already read from `client`.
    pub(crate) async fn run(self, tls: &Arc<TlsContext>, client: Stream, prefix: Vec<u8>) {
        match self {
            Self::Blind(tunnel) => tunnel.run(client, prefix).await,
            Self::Intercepted { proxy, host, port } => {
                let io = (client, prefix.into());
                Box::pin(intercept::serve(&proxy, tls, io, host, port)).await;
            }
            Self::Plain { proxy, host, via } => {
                let target = Target { scheme: Scheme::Http, host, port: PLAIN_PORT };
                Box::pin(plain_tunnel::serve(&proxy, tls, (client, prefix), target, via)).await;
            }
        }
    }
}
