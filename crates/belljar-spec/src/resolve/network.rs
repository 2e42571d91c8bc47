//! Resolves the network access: hosts, credentials, and published ports.

use std::collections::BTreeMap;

use super::ResolveError;
use crate::egress::{
    Budget, EgressSpec, PROXY_PORT, Reach, RouteScheme, RouteSpec, RouteTarget, Scheme,
    SecretPlace, SecretSource, SecretSpec,
};
use crate::host::{Host, parse_authority};
use crate::host_rule::{HostPattern, HostRule, is_plain_path};
use crate::layers::Settings;
use crate::manifest::{Limit, NetworkBudget, Route, Secret};
use crate::size::Size;
use crate::text::{OsText, escape};

/// More would not fit into the proxy's configuration message.
const MAX_RULES: usize = 1000;
const MAX_POLICY: usize = 80 * 1024;

fn wrong(key: impl Into<String>, why: impl Into<String>) -> ResolveError {
    ResolveError::Network { key: key.into(), why: why.into() }
}

pub(super) fn rules(settings: &Settings) -> Result<Vec<String>, ResolveError> {
    let rules = parsed_rules("network.allow", &settings.values.network.allow)?;
    refuse_localhost(settings, &rules)?;
    Ok(rules)
}

/// What the set-up reaches. Its TLS is never opened: the proxy would have to answer for hosts with the run's authority
/// while unreviewed code runs.
pub(super) fn setup_rules(settings: &Settings) -> Result<Vec<String>, ResolveError> {
    let key = "setup.network";
    let rules = parsed_rules(key, &settings.values.setup.network)?;
    let looks = |text: &&String| {
        HostRule::parse(text).is_ok_and(|rule| rule.looks_inside() && rule.port != Some(80))
    };
    match rules.iter().find(looks) {
        None => Ok(rules),
        Some(rule) => {
            let shown = escape(rule.as_bytes());
            let why = format!(
                "\"{shown}\" names a method or a path, and the set-up's TLS is not opened; name the host alone"
            );
            Err(wrong(key, why))
        }
    }
}

fn parsed_rules(key: &str, rules: &Option<Vec<String>>) -> Result<Vec<String>, ResolveError> {
    let rules = rules.as_deref().unwrap_or_default();
    if rules.len() > MAX_RULES {
        return Err(wrong(key, format!("more than {MAX_RULES} rules; use *.suffix")));
    }
    let rule = |text: &String| HostRule::parse(text).map(|rule| rule.to_string());
    rules.iter().map(rule).collect::<Result<_, _>>().map_err(|why| wrong(key, why))
}

/// Unless it says which requests are allowed at a private host and port.
fn refuse_localhost(settings: &Settings, rules: &[String]) -> Result<(), ResolveError> {
    let private = settings.values.network.allow_private.iter().flatten();
    let private: Vec<(Host, Option<u16>)> =
        private.flat_map(|text| parse_authority(text.as_bytes())).collect();
    let rules = rules.iter().flat_map(|text| HostRule::parse(text));
    let mut others = rules.filter(|rule| {
        !private
            .iter()
            .any(|(host, port)| rule.is_about(host) && port.is_some_and(|port| rule.has_port(port)))
    });
    match others.find_map(|rule| rule.localhost_reason()) {
        Some(why) => Err(wrong("network.allow", why)),
        None => Ok(()),
    }
}

pub(super) fn allows_everything(settings: &Settings) -> bool {
    let values = &settings.values;
    let rules = values.network.allow.iter().chain(&values.setup.network).flatten();
    rules.flat_map(|text| HostRule::parse(text)).any(|rule| rule.hosts == HostPattern::Any)
}

pub(super) fn egress(
    settings: &Settings,
    reach: Reach,
    login: &[SecretSpec],
    env: &BTreeMap<String, OsText>,
) -> Result<EgressSpec, ResolveError> {
    let network = &settings.values.network;
    let egress = EgressSpec {
        reach,
        allow_private: private(network.allow_private.as_deref().unwrap_or_default())?,
        intercept: intercepted(network.intercept.as_deref().unwrap_or_default())?,
        secrets: secrets(settings)?.into_iter().chain(login.iter().cloned()).collect(),
        routes: routes(settings)?,
        budget: budget(&network.budget),
        per_host: budget(&network.budget_per_host),
        publish: network.publish.iter().flatten().map(|publish| publish.spec).collect(),
    };
    check_secrets(settings, &egress)?;
    check_tcp_routes(&egress)?;
    check_ports(&egress)?;
    check_size(settings, &egress)?;
    if let Some(secret) = egress.secrets.iter().find(|secret| env.contains_key(&secret.env)) {
        let why =
            "the variable is given to the run as well, value and all; drop it from sandbox.env, \
                   pass_env and env_file"
                .to_owned();
        return Err(wrong(format!("secret {}", secret.env), why));
    }
    Ok(egress)
}

fn private(hosts: &[String]) -> Result<Vec<String>, ResolveError> {
    let one = |text: &String| match parse_authority(text.as_bytes()) {
        Ok((host, Some(port))) => Ok(format!("{host}:{port}")),
        _ => {
            let shown = escape(text.as_bytes());
            let why = format!("\"{shown}\" is not a host with a port, such as db.internal:5432");
            Err(wrong("network.allow_private", why))
        }
    };
    hosts.iter().map(one).collect()
}

fn intercepted(hosts: &[String]) -> Result<Vec<String>, ResolveError> {
    let key = "network.intercept";
    let one = |text: &String| {
        let rule = HostRule::parse(text).map_err(|why| wrong(key, why))?;
        match (&rule.hosts, rule.looks_inside()) {
            (HostPattern::Any, _) => Err(wrong(key, "\"*\" is too broad; name the hosts")),
            (_, true) => Err(wrong(
                key,
                "write a host without method and path; those belong in network.allow",
            )),
            _ => Ok(rule.to_string()),
        }
    };
    hosts.iter().map(one).collect()
}

fn budget(budget: &NetworkBudget) -> Budget {
    let bytes = |limit: Option<Limit<Size>>| limit.and_then(Limit::value).map(|Size(bytes)| bytes);
    Budget {
        bytes_out: bytes(budget.bytes_out),
        bytes_in: bytes(budget.bytes_in),
        connections: budget.connections.and_then(Limit::value),
        requests: budget.requests.and_then(Limit::value).map(u64::from),
    }
}

fn secrets(settings: &Settings) -> Result<Vec<SecretSpec>, ResolveError> {
    let entries = settings.values.secret.iter().flat_map(|secrets| &secrets.0).enumerate();
    let mut all: Vec<SecretSpec> = Vec::new();
    for (index, entry) in entries {
        let key = format!("secret[{index}]");
        let secret = secret(&key, entry)?;
        // A higher layer's secret of the same name replaces it.
        all.retain(|other| other.env != secret.env);
        all.push(secret);
    }
    Ok(all)
}

fn secret(key: &str, entry: &Secret) -> Result<SecretSpec, ResolveError> {
    let env = crate::env_file::check_name(entry.env.as_bytes())
        .map_err(|why| wrong(format!("{key}.env"), why))?;
    let host = Host::parse(entry.host.as_bytes()).map_err(|error| {
        let shown = escape(entry.host.as_bytes());
        wrong(format!("{key}.host"), format!("\"{shown}\" is not a host: {error}"))
    })?;
    let place = if let Some(name) = &entry.header {
        SecretPlace::Header { name: header(key, name)? }
    } else if let Some(name) = &entry.query {
        SecretPlace::Query { name: plain_name(&format!("{key}.query"), name)? }
    } else if let Some(user) = &entry.basic {
        SecretPlace::Basic { user: user_name(&format!("{key}.basic"), user)? }
    } else {
        SecretPlace::Bearer
    };
    let source = if let Some(path) = &entry.file {
        SecretSource::File { path: path.0.clone() }
    } else if let Some(argv) = &entry.command {
        SecretSource::Command { argv: argv.clone() }
    } else if let Some(entry) = &entry.keyring {
        SecretSource::Keyring { entry: entry.clone() }
    } else {
        let name = entry.from_env.clone().unwrap_or_else(|| env.clone());
        SecretSource::Env { name }
    };
    Ok(SecretSpec { env, host, port: entry.port.unwrap_or(443), place, source })
}

/// Headers that direct or delimit a request are not for credentials.
fn header(key: &str, name: &str) -> Result<String, ResolveError> {
    const NEVER: &[&str] = &[
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "te",
        "upgrade",
        "trailer",
        "expect",
    ];
    let name = plain_name(&format!("{key}.header"), name)?.to_ascii_lowercase();
    if NEVER.contains(&name.as_str()) || name.starts_with("proxy-") {
        return Err(wrong(format!("{key}.header"), format!("{name} cannot carry credentials")));
    }
    Ok(name)
}

fn plain_name(key: &str, text: &str) -> Result<String, ResolveError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || !text.bytes().all(plain) {
        return Err(wrong(key, format!("\"{}\" is not a plain name", escape(text.as_bytes()))));
    }
    Ok(text.to_owned())
}

fn user_name(key: &str, text: &str) -> Result<String, ResolveError> {
    if text.contains(':') || text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(wrong(key, format!("\"{}\" is not a user name", escape(text.as_bytes()))));
    }
    Ok(text.to_owned())
}

fn routes(settings: &Settings) -> Result<Vec<RouteSpec>, ResolveError> {
    let entries = settings.values.route.iter().flat_map(|routes| &routes.0).enumerate();
    let mut all: Vec<RouteSpec> = Vec::new();
    for (index, entry) in entries {
        let key = format!("route[{index}]");
        let route = route(&key, entry)?;
        all.retain(|other| other.listen != route.listen);
        all.push(route);
    }
    Ok(all)
}

fn route(key: &str, entry: &Route) -> Result<RouteSpec, ResolveError> {
    if entry.listen == 0 || entry.listen == PROXY_PORT {
        let why = format!("port {} is not available; the proxy uses {PROXY_PORT}", entry.listen);
        return Err(wrong(format!("{key}.listen"), why));
    }
    let to = target(&entry.to).ok_or_else(|| {
        let shown = escape(entry.to.as_bytes());
        let why = format!(
            "\"{shown}\" leads nowhere; write https://host[:port][/path] or tcp://host:port"
        );
        wrong(format!("{key}.to"), why)
    })?;
    if to.scheme == RouteScheme::Tcp && entry.secret.is_some() {
        let why = "a tcp:// route carries bytes that the proxy does not read, so no secret can be put in; \
                   route to https://";
        return Err(wrong(format!("{key}.secret"), why));
    }
    Ok(RouteSpec { listen: entry.listen, to, secret: entry.secret.clone() })
}

fn target(text: &str) -> Option<RouteTarget> {
    let (scheme, rest) = match text.split_once("://")? {
        ("https", rest) => (RouteScheme::Https, rest),
        ("http", rest) => (RouteScheme::Http, rest),
        ("tcp", rest) => (RouteScheme::Tcp, rest),
        _ => return None,
    };
    let (authority, path) = match rest.find('/') {
        None => (rest, ""),
        Some(at) => rest.split_at(at),
    };
    let (host, port) = parse_authority(authority.as_bytes()).ok()?;
    let port = port.or(scheme.http().map(Scheme::usual_port))?;
    if scheme == RouteScheme::Tcp && !path.is_empty() {
        return None;
    }
    let path = path.trim_end_matches('/');
    if !path.is_empty() && (!is_plain_path(path) || path.contains(['?', '#'])) {
        return None;
    }
    Some(RouteTarget { scheme, host, port, path: path.to_owned() })
}

fn check_size(settings: &Settings, egress: &EgressSpec) -> Result<(), ResolveError> {
    let rules = settings.values.network.allow.as_deref().unwrap_or_default();
    let setup = settings.values.setup.network.as_deref().unwrap_or_default();
    let size = serde_json::to_vec(&(rules, setup, egress)).map_or(usize::MAX, |text| text.len());
    if size > MAX_POLICY {
        let why = format!("the rules have more than {MAX_POLICY} bytes in total; use *.suffix");
        return Err(wrong("network", why));
    }
    Ok(())
}

/// Which part of a request holds it.
fn written_to(place: &SecretPlace) -> (&'static str, &str) {
    match place {
        SecretPlace::Header { name } => ("header", name),
        SecretPlace::Query { name } => ("query", name),
        SecretPlace::Basic { .. } | SecretPlace::Bearer => ("header", "authorization"),
    }
}

/// The host must not reach the proxy's listeners, which add secrets.
fn check_ports(egress: &EgressSpec) -> Result<(), ResolveError> {
    let is_door =
        |port: u16| port == PROXY_PORT || egress.routes.iter().any(|route| route.listen == port);
    match egress.publish.iter().find(|publish| is_door(publish.port)) {
        None => Ok(()),
        Some(publish) => {
            let why = format!("port {} inside is used by the run's proxy", publish.port);
            Err(wrong("network.publish", why))
        }
    }
}

/// Where the proxy has to read requests, bytes that it does not read would go past it.
fn check_tcp_routes(egress: &EgressSpec) -> Result<(), ResolveError> {
    for route in egress.routes.iter().filter(|route| route.to.scheme == RouteScheme::Tcp) {
        let RouteTarget { host, port, .. } = &route.to;
        let refuse = |why: String| Err(wrong(format!("route {}", route.listen), why));
        let has_secret = |secret: &&SecretSpec| secret.host == *host && secret.port == *port;
        if let Some(secret) = egress.secrets.iter().find(has_secret) {
            let env = &secret.env;
            return refuse(format!(
                "the secret {env} is for {host}:{port}, and a tcp:// route cannot put it in; route to https://"
            ));
        }
        let is_read = |text: &&String| {
            HostRule::parse(text)
                .is_ok_and(|rule| rule.is_about(host) && rule.port.unwrap_or(443) == *port)
        };
        if let Some(rule) = egress.intercept.iter().find(is_read) {
            return refuse(format!(
                "network.intercept has \"{rule}\", and a tcp:// route to {host}:{port} is not read; drop one of them"
            ));
        }
    }
    Ok(())
}

/// A secret that can never be used is a mistake, and so are two for one place.
fn check_secrets(settings: &Settings, egress: &EgressSpec) -> Result<(), ResolveError> {
    for route in &egress.routes {
        let Some(env) = &route.secret else { continue };
        let key = format!("route {}", route.listen);
        match egress.secrets.iter().find(|secret| secret.env == *env) {
            None => {
                let why =
                    format!("there is no [[secret]] with env = \"{}\"", escape(env.as_bytes()));
                return Err(wrong(key, why));
            }
            Some(secret) if secret.host != route.to.host || secret.port != route.to.port => {
                let why = format!(
                    "the secret {env} is for {}:{}, but the route goes to {}:{}",
                    secret.host, secret.port, route.to.host, route.to.port
                );
                return Err(wrong(key, why));
            }
            Some(_) => {}
        }
    }
    let rules: Vec<HostRule> = settings
        .values
        .network
        .allow
        .iter()
        .flatten()
        .flat_map(|text| HostRule::parse(text))
        .collect();
    for (index, secret) in egress.secrets.iter().enumerate() {
        let SecretSpec { env, host, port, place, .. } = secret;
        let authority = format!("{host}:{port}");
        let routed =
            egress.routes.iter().any(|route| route.secret.as_deref() == Some(env.as_str()));
        let listed = rules.iter().any(|rule| rule.is_about(host) && rule.has_port(*port));
        let private = egress.allow_private.contains(&authority);
        if !(routed || listed || private || egress.reach == Reach::Learn) {
            let why = format!(
                "{authority} cannot be reached; add it to network.allow, or add a [[route]] to it"
            );
            return Err(wrong(format!("secret {env}"), why));
        }
        let twice = |other: &&SecretSpec| {
            other.host == *host
                && other.port == *port
                && written_to(&other.place) == written_to(place)
        };
        if let Some(other) = egress.secrets[..index].iter().find(twice) {
            let why = format!(
                "{} and {env} both use the same place in requests to {authority}",
                other.env
            );
            return Err(wrong(format!("secret {env}"), why));
        }
    }
    Ok(())
}
