//! Finds hosts, ports, secrets and routes that a manifest opens.

use super::Finder;
use crate::manifest::Secret;
use crate::text::escape;

impl Finder<'_> {
    pub(super) fn network(&mut self) {
        let manifest = self.manifest;
        let lower = self.baseline.lower;
        let lists = [
            ("network.allow", &manifest.network.allow, &lower.network.allow, "lets the run reach"),
            (
                "network.allow_private",
                &manifest.network.allow_private,
                &lower.network.allow_private,
                "lets the run reach, in your local network,",
            ),
            (
                "setup.network",
                &manifest.setup.network,
                &lower.setup.network,
                "lets the set-up reach",
            ),
        ];
        for (key, entries, lower, what) in lists {
            for entry in not_in(entries, lower) {
                self.add(key, format!("{what} {}", escape(entry.as_bytes())));
            }
        }
        let lower_ports = lower.network.publish.as_deref().unwrap_or_default();
        let ports = manifest.network.publish.iter().flatten();
        for publish in ports.filter(|publish| !lower_ports.contains(publish)) {
            let shown = escape(publish.to_string().as_bytes());
            self.add("network.publish", format!("opens a port of the host: {shown}"));
        }
        if let Some(hosts) = &manifest.network.intercept {
            let dropped = lower.network.intercept.iter().flatten();
            for host in dropped.filter(|host| !hosts.contains(host)) {
                let what = format!("hides requests to {} from the rules", escape(host.as_bytes()));
                self.add("network.intercept", what);
            }
        }
        self.network_budgets();
        let secrets = self.manifest.secret.iter().flat_map(|secrets| &secrets.0);
        let full: Vec<Secret> =
            self.absolute.secret.iter().flat_map(|secrets| secrets.0.clone()).collect();
        let known = lower.secret.as_ref();
        for (index, (secret, full)) in secrets.zip(full).enumerate() {
            if !known.is_some_and(|known| known.0.contains(&full)) {
                self.secret(index, secret);
            }
        }
        for (index, route) in manifest.route.iter().flat_map(|routes| &routes.0).enumerate() {
            if lower.route.as_ref().is_some_and(|lower| lower.0.contains(route)) {
                continue;
            }
            let what = format!("forwards port {} to {}", route.listen, escape(route.to.as_bytes()));
            self.add(format!("route[{index}]"), what);
        }
    }

    fn secret(&mut self, index: usize, secret: &Secret) {
        let shown = |text: &str| escape(text.as_bytes());
        let what = format!("sends the secret {} to {}", shown(&secret.env), shown(&secret.host));
        self.add(format!("secret[{index}]"), what);
        if let Some(command) = &secret.command {
            let what = format!("executes on the host: {}", shown(&command.join(" ")));
            self.add(format!("secret[{index}].command"), what);
        }
        if let Some(file) = &secret.file {
            self.add(format!("secret[{index}].file"), format!("reads {}", file.0));
        }
    }
}

fn not_in<'a>(
    wanted: &'a Option<Vec<String>>,
    lower: &Option<Vec<String>>,
) -> impl Iterator<Item = &'a String> {
    let lower = lower.as_deref().unwrap_or_default();
    wanted.iter().flatten().filter(move |entry| !lower.contains(entry))
}
