//! Checks HTTP requests and carries them to their host: framing, headers, targets, bodies, credentials, masking.

pub(crate) mod body;
pub(crate) mod forward;
pub(crate) mod framing;
pub(crate) mod headers;
pub(crate) mod overrides;
pub(crate) mod refusal_response;
pub(crate) mod request_target;
pub(crate) mod secret_injection;
pub(crate) mod secret_mask;
pub(crate) mod websocket;
