//! `belljar network`: shows what a live run may reach, and changes it.

use std::net::SocketAddr;

use belljar::Client;
use belljar::spec::egress::{Reach, RouteSpec};
use belljar::spec::text::escape;
use belljar::{NetworkAccess, NetworkChange, NetworkState};
use serde_json::{Value, json};

use super::{CommandResult, exit_code_json, find_live, in_runtime, open_home};
use crate::cli::NetworkArgs;
use crate::report::{self, DIM, WARN};

/// Instead of a list: nothing.
const NONE: &str = "none";

#[derive(Debug, thiserror::Error)]
#[error(
    "\"none\" stands alone: it allows nothing; leave it out, or the hosts (a host of that name: none:443)"
)]
struct NoneAndMore;

pub(crate) fn run(args: &NetworkArgs) -> i32 {
    exit_code_json(act(args), args.json)
}

fn act(args: &NetworkArgs) -> CommandResult {
    let change = change(args)?;
    let home = open_home()?;
    let run = find_live(&home, &args.run)?.id;
    in_runtime(async {
        let client = Client::connect(home.path(), &run).await?;
        let is_change = change.is_some();
        let state = match change {
            Some(change) => client.change_network(change).await?,
            None => client.network().await?,
        };
        if args.json {
            report::json(&object(&state))?;
        } else {
            report::out(&page(&state));
            if is_change && state.closed > 0 {
                report::eprintln(&closed(state.closed));
            }
        }
        Ok(0)
    })
}

fn change(args: &NetworkArgs) -> Result<Option<NetworkChange>, NoneAndMore> {
    let NetworkArgs { set, allow, deny, .. } = args;
    let has_none = set.iter().any(|host| host == NONE);
    if has_none && set.len() > 1 {
        return Err(NoneAndMore);
    }
    let change = NetworkChange {
        set: (!set.is_empty()).then(|| if has_none { Vec::new() } else { set.clone() }),
        allow: allow.clone(),
        deny: deny.clone(),
    };
    Ok((change != NetworkChange::default()).then_some(change))
}

fn closed(count: u64) -> String {
    match count {
        1 => "1 connection was closed".to_owned(),
        _ => format!("{count} connections were closed"),
    }
}

fn object(state: &NetworkState) -> Value {
    let NetworkState { run, access, list, routes, ports, closed } = state;
    let routes: Vec<Value> = routes
        .iter()
        .map(|RouteSpec { listen, to, .. }| {
            json!({ "listen": listen, "to": to.to_string(), "open": list.routes.contains(listen) })
        })
        .collect();
    json!({
        "id": run, "access": access, "learn": list.reach == Reach::Learn, "allow": list.allow,
        "allow_private": list.allow_private, "routes": routes, "setup": list.setup, "ports": ports,
        "closed": closed,
    })
}

fn page(state: &NetworkState) -> String {
    let NetworkState { list, routes, ports, .. } = state;
    let mut lines = Vec::new();
    let mut row = |name: &str, text: String| lines.push(format!("{name:<9}{text}\n"));
    let shown = |text: &String| escape(text.as_bytes());
    if let Some(setup) = &list.setup {
        match setup.is_empty() {
            true => row("set-up", format!("none {DIM}(until the set-up has ended){DIM:#}")),
            false => setup.iter().for_each(|rule| row("set-up", shown(rule))),
        }
    }
    match (state.access, list.reach) {
        (NetworkAccess::Lost, _) => {
            row("allow", format!("none {WARN}(the proxy died){WARN:#}"));
        }
        (NetworkAccess::None, _) => row("allow", "none (the run has no proxy)".to_owned()),
        (NetworkAccess::Proxy, Reach::Learn) => row("allow", "every public name".to_owned()),
        (NetworkAccess::Proxy, Reach::Listed) if list.allow.is_empty() => {
            row("allow", NONE.to_owned());
        }
        (NetworkAccess::Proxy, Reach::Listed) => {}
    }
    if state.access == NetworkAccess::Proxy {
        list.allow.iter().for_each(|rule| row("allow", shown(rule)));
        list.allow_private.iter().for_each(|host| row("private", shown(host)));
        for RouteSpec { listen, to, .. } in routes {
            let is_closed = if list.routes.contains(listen) { "" } else { " (closed)" };
            row("route", format!("{listen} -> {}{is_closed}", shown(&to.to_string())));
        }
    }
    for published in ports {
        let outside = SocketAddr::new(published.address, published.host_port);
        row("port", format!("{}/tcp -> {outside}", published.port));
    }
    lines.concat()
}
