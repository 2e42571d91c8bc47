//! Resolving the network settings.

use crate::common::{CWD, Given};
use belljar_spec::Clause;
use belljar_spec::egress::{Reach, SecretPlace, SecretSource};

fn run(manifest: &str) -> Result<belljar_spec::RunSpec, belljar_spec::ResolveError> {
    Given { manifest, ..Given::default() }.resolve()
}

fn refused(manifest: &str) -> String {
    run(manifest).unwrap_err().to_string()
}

const SECRET: &str = "[[secret]]\nenv = 'KEY'\nhost = 'API.example.'\nheader = 'X-Api-Key'\n";

#[test]
fn nothing_said_is_no_way_out() {
    for text in ["", "[network]\n", "[network]\nallow = []\n", "[network]\nallow_private = []\n"] {
        let spec = run(text).unwrap();
        assert!(!spec.has_network_access() && !spec.intercepts(), "{text}");
    }
}

#[test]
fn localhost_opens_nothing_and_is_refused() {
    let allowed = |rule: &str| format!("[network]\nallow = ['{rule}']\n");
    for rule in
        ["localhost:8080", "localhost", "a.localhost:8080", "*.localhost", "GET LocalHost:1/x"]
    {
        let why = refused(&allowed(rule));
        assert!(why.contains("the sandbox's own loopback") && why.contains("[[route]]"), "{why}");
    }
    assert!(refused(&allowed("localhost:8080")).contains("to = \"tcp://127.0.0.1:8080\""));
    for rule in ["127.0.0.1:8080", "localhost.example", "notlocalhost", "*.example"] {
        assert!(run(&allowed(rule)).is_ok(), "{rule}");
    }
    let private = "allow_private = ['localhost:8080']\n";
    let both = |rule: &str| run(&format!("{}{private}", allowed(rule)));
    assert!(both("GET localhost:8080/v1").is_ok(), "it limits what is allowed there");
    assert!(both("localhost:8081").is_err());
}

#[test]
fn a_secret_is_normalised_and_needs_a_way_to_its_host() {
    let allowed = format!("[network]\nallow = ['api.example']\n{SECRET}");
    let spec = run(&allowed).unwrap();
    let secret = &spec.egress.secrets[0];
    assert_eq!((secret.host.to_string(), secret.port), ("api.example".to_owned(), 443));
    assert_eq!(secret.place, SecretPlace::Header { name: "x-api-key".into() });
    assert_eq!(secret.source, SecretSource::Env { name: "KEY".into() });
    assert!(spec.intercepts());
    assert!(refused(SECRET).contains("api.example:443 cannot be reached"));
    let other_port = format!("[network]\nallow = ['api.example:80']\n{SECRET}");
    assert!(refused(&other_port).contains("api.example:443 cannot be reached"));
}

#[test]
fn a_secret_with_a_route_needs_no_interception() {
    let route = "[[route]]\nlisten = 8080\nto = 'https://api.example/v1/'\nsecret = 'KEY'\n";
    let spec = run(&format!("{SECRET}{route}")).unwrap();
    assert!(spec.has_network_access() && !spec.intercepts());
    let to = &spec.egress.routes[0].to;
    assert_eq!((to.port, to.path.as_str()), (443, "/v1"));
}

#[test]
fn what_makes_no_sense_is_refused_with_its_key() {
    let secret = |lines: &str| {
        format!("[network]\nallow = ['h']\n[[secret]]\nenv = 'A'\nhost = 'h'\n{lines}")
    };
    for (text, want) in [
        (
            "[network]\nallow = ['http://a']\n".to_owned(),
            "network.allow: \"http://a\" is not a host rule",
        ),
        (
            "[network]\nallow_private = ['db']\n".to_owned(),
            "network.allow_private: \"db\" is not a host with a port",
        ),
        ("[network]\nintercept = ['*']\n".to_owned(), "network.intercept: \"*\" is too broad"),
        (secret("header = 'Host'\n"), "host cannot carry credentials"),
        (secret("header = 'a b'\n"), "is not a plain name"),
        (secret("basic = 'a:b'\n"), "is not a user name"),
        (
            secret("bearer = true\n[[secret]]\nenv = 'B'\nhost = 'h'\nheader = 'Authorization'\n"),
            "A and B both use the same place",
        ),
        (
            "[network]\nallow = ['h']\npublish = ['61080']\n".to_owned(),
            "port 61080 inside is used by the run's proxy",
        ),
        (
            "[[route]]\nlisten = 0\nto = 'https://a'\n".to_owned(),
            "route[0].listen: port 0 is not available",
        ),
        ("[[route]]\nlisten = 1\nto = 'ftp://a'\n".to_owned(), "leads nowhere"),
        ("[[route]]\nlisten = 1\nto = 'https://u@a'\n".to_owned(), "leads nowhere"),
        ("[[route]]\nlisten = 1\nto = 'tcp://a'\n".to_owned(), "or tcp://host:port"),
        ("[[route]]\nlisten = 1\nto = 'tcp://a:1/b'\n".to_owned(), "leads nowhere"),
        (
            format!("{SECRET}[[route]]\nlisten = 1\nto = 'tcp://b:1'\nsecret = 'KEY'\n"),
            "no secret can be put in",
        ),
        (
            format!(
                "[network]\nallow = ['api.example']\n{SECRET}\
                 [[route]]\nlisten = 1\nto = 'tcp://api.example:443'\n"
            ),
            "a tcp:// route cannot put it in",
        ),
        (
            "[network]\nintercept = ['*.example']\n[[route]]\nlisten = 1\nto = 'tcp://a.example:443'\n".to_owned(),
            "is not read",
        ),
        (
            "[[route]]\nlisten = 1\nto = 'https://a'\nsecret = 'K'\n".to_owned(),
            "there is no [[secret]]",
        ),
        (
            format!("{SECRET}[[route]]\nlisten = 1\nto = 'https://b'\nsecret = 'KEY'\n"),
            "the secret KEY is for api.example:443, but the route goes to b:443",
        ),
        (secret("bearer = true\n[sandbox]\nenv = { A = 'v' }\n"), "is given to the run as well"),
        (
            secret("bearer = true\n[[secret]]\nenv = 'B'\nhost = 'h'\nbearer = true\n"),
            "A and B both use the same place",
        ),
    ] {
        let found = refused(&text);
        assert!(found.contains(want), "{found}\nwanted {want}");
    }
}

#[test]
fn whoever_asks_for_everything_is_told_that_it_is_weaker_and_not_stopped() {
    assert!(run("[network]\nallow = ['a']\n").unwrap().required.contains(&Clause::NetSealed));
    assert!(!run("[network]\nallow = ['*']\n").unwrap().required.contains(&Clause::NetSealed));
    let demanded = "[network]\nallow = ['*']\n[policy]\nrequire = ['net.sealed']\n";
    assert!(run(demanded).unwrap().required.contains(&Clause::NetSealed));
    let mut request = belljar_spec::Request::new(
        belljar_spec::MainCommand::Argv(vec!["true".into()]),
        CWD.into(),
    );
    request.reach = Reach::Learn;
    let settings = Given::default().settings();
    let spec = belljar_spec::resolve(&settings, &request, &Default::default()).unwrap();
    assert!(spec.has_network_access() && !spec.required.contains(&Clause::NetSealed));
}

#[test]
fn a_ceiling_holds_for_routes_ports_and_learning_too() {
    let under = |ceiling: &str, manifest: &str| {
        Given { ceiling: Some(ceiling), manifest, ..Given::default() }.resolve().map(drop)
    };
    let ceiling = "[network]\nallow = ['*.example']\npublish = ['127.0.0.1::3000']\n";
    assert!(under(ceiling, "[[route]]\nlisten = 1\nto = 'https://a.example'\n").is_ok());
    assert!(under(ceiling, "[[route]]\nlisten = 1\nto = 'https://b.test'\n").is_err());
    assert!(under(ceiling, "[network]\npublish = ['8080:3000']\n").is_ok());
    assert!(under(ceiling, "[network]\npublish = ['0.0.0.0:8080:3000']\n").is_err());
    assert!(under(ceiling, "[network]\nallow_private = ['b.test:443']\n").is_err());
    assert!(under(ceiling, "[network]\nallow_private = ['a.example:443']\n").is_ok());
    let settings = Given { ceiling: Some(ceiling), ..Given::default() }.settings();
    let mut request = belljar_spec::Request::new(
        belljar_spec::MainCommand::Argv(vec!["true".into()]),
        CWD.into(),
    );
    request.reach = Reach::Learn;
    let error = belljar_spec::resolve(&settings, &request, &Default::default()).unwrap_err();
    assert!(error.to_string().contains("--learn"), "{error}");
}

/// An agent's run, which alone has a set-up.
fn agent(manifest: &str) -> Result<belljar_spec::RunSpec, belljar_spec::ResolveError> {
    let request = belljar_spec::Request::new(belljar_spec::MainCommand::Agent, CWD.into());
    let manifest = format!("{manifest}\n[agent]\nkind = 'command'\ncommand = ['true']\n");
    let given = Given { manifest: &manifest, ..Given::default() };
    belljar_spec::resolve(&given.settings(), &request, &crate::common::host())
}

#[test]
fn a_set_up_has_hosts_of_its_own() {
    let spec = agent("[setup]\ncommand = ['true']\nnetwork = ['Pypi.example']\n").unwrap();
    assert_eq!(spec.setup_network(), ["pypi.example"]);
    assert!(spec.has_network_access() && !spec.has_network_access_after_setup());
    assert!(spec.required.contains(&Clause::NetSealed));
    let both =
        "[setup]\ncommand = ['true']\nnetwork = ['a.example']\n[network]\nallow = ['b.example']\n";
    assert!(agent(both).unwrap().has_network_access_after_setup());
    let any = agent("[setup]\ncommand = ['true']\nnetwork = ['*']\n").unwrap();
    assert!(!any.required.contains(&Clause::NetSealed));
    for (hosts, why) in [("'http://x'", "setup.network"), ("'GET a.example/x'", "not opened")] {
        let text = format!("[setup]\ncommand = ['true']\nnetwork = [{hosts}]\n");
        let refused = agent(&text).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    assert!(agent("[setup]\ncommand = ['true']\nnetwork = ['GET a.example:80/x']\n").is_ok());
    // A run with a command has none.
    let plain = run("[setup]\ncommand = ['true']\nnetwork = ['a.example']\n").unwrap();
    assert!(plain.setup().is_none() && !plain.has_network_access());
}

#[test]
fn rules_on_commands_are_part_of_the_run() {
    use belljar_spec::manifest::CommandMode;
    let spec = run("").unwrap();
    assert_eq!(spec.commands, belljar_spec::CommandPolicy::default());
    assert_eq!(spec.commands.mode, CommandMode::Warn);
    assert!(!serde_json::to_string(&spec).unwrap().contains("commands"));
    let changed =
        run("[commands]\nmode = 'strict'\ndeny = ['x', { rule = 'y', match = ['y'] }]\n").unwrap();
    assert_eq!((changed.commands.mode, changed.commands.deny.len()), (CommandMode::Strict, 2));
    assert_eq!(changed.commands.deny[1].matches, ["y"]);
    assert_ne!(changed.hash(), spec.hash());
    let long = format!("[commands]\ndeny = ['{}']\n", "x".repeat(2000));
    assert!(refused(&long).contains("commands.deny"));
}

#[test]
fn a_tcp_route_has_a_host_and_a_port() {
    for (to, shown) in [
        ("tcp://DB.example.:5432", "tcp://db.example:5432"),
        ("tcp://[2001:db8::1]:80", "tcp://[2001:db8::1]:80"),
        ("tcp://127.0.0.1:6379/", ""),
        ("https://a.example:443/v1/", "https://a.example/v1"),
    ] {
        let spec = run(&format!("[[route]]\nlisten = 5432\nto = '{to}'\n"));
        match shown {
            "" => assert!(spec.is_err(), "{to}"),
            _ => assert_eq!(spec.unwrap().egress.routes[0].to.to_string(), shown),
        }
    }
}
