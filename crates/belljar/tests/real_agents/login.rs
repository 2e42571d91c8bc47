//! `agent.auth = "login"` with the real agents: they accept the placeholders, and outlive a token.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use belljar::spec::EventKind;
use belljar_testkit::{AccessForm, RealAgent, TokenEndpoint, Turn, WebSockets, files_with};
use serde_json::json;

use crate::stage::{Place, Stage, with_service_at};

/// Of the tokens that the endpoint issues: shorter than the agent's command runs.
const LIFETIME: Duration = Duration::from_secs(6);
const COMMAND: &str = "sleep 8; echo made > made.txt";
const ACCOUNT: &str = "account-of-the-user";

/// Where requests of a login go, and the file that has it.
fn service(agent: RealAgent) -> (&'static str, &'static str, AccessForm) {
    match agent {
        RealAgent::Claude => ("api.anthropic.com", ".claude/.credentials.json", AccessForm::Opaque),
        RealAgent::Codex => ("chatgpt.com", ".codex/auth.json", AccessForm::Jwt),
        RealAgent::Gemini => {
            ("cloudcode-pa.googleapis.com", ".gemini/oauth_creds.json", AccessForm::Opaque)
        }
    }
}

/// As the agent itself stores it.
fn stored(agent: RealAgent, access: &str, refresh: &str) -> String {
    let expires = (UNIX_EPOCH.elapsed().unwrap() + LIFETIME).as_millis() as u64;
    match agent {
        RealAgent::Claude => json!({ "claudeAiOauth": {
            "accessToken": access, "refreshToken": refresh, "expiresAt": expires,
            "scopes": ["user:inference"], "subscriptionType": "max" } }),
        RealAgent::Codex => json!({
            "OPENAI_API_KEY": null,
            "tokens": { "id_token": access, "access_token": access, "refresh_token": refresh,
                        "account_id": ACCOUNT },
            "last_refresh": "2026-01-01T00:00:00Z" }),
        RealAgent::Gemini => json!({
            "access_token": access, "refresh_token": refresh, "expiry_date": expires,
            "token_type": "Bearer", "scope": "s" }),
    }
    .to_string()
}

fn outlives_its_token(agent: RealAgent) {
    let (host, file, form) = service(agent);
    with_service_at(host, agent, Place::JailAsUser, |stage| {
        let endpoint = TokenEndpoint::start(stage.world.pid(), form, "refresh-token", LIFETIME);
        let settings = format!("[{}]\ntoken_url = \"{}\"\n", agent.name(), endpoint.url);
        stage.lab.make_file("person/.config/belljar/login.toml", settings);
        let (access, refresh) = endpoint.issue();
        stage.lab.make_file(Path::new("person").join(file), stored(agent, &access, &refresh));
        let issued = endpoint.clone();
        stage.model.accept(move |key| issued.access_tokens().iter().any(|token| token == key));
        // Over a WebSocket codex shows its token once; here each request has one.
        stage.model.set_websockets(WebSockets::Refused);
        works(stage, &endpoint);
    });
}

fn works(stage: &Stage<'_>, endpoint: &TokenEndpoint) {
    stage.model.play([Turn::run(COMMAND), Turn::say("All is done.")]);
    let words = ["--workspace", ".:overlay", "--agent", stage.agent.name()];
    let more = ["-c", "agent.auth=login", "--json", "--prompt", "Please do the work."];
    let readable: &[&str] = match stage.agent {
        // The service of the test reads no compressed requests.
        RealAgent::Codex => {
            &["-c", "agent.args=[\"-c\", \"features.enable_request_compression=false\"]"]
        }
        RealAgent::Claude | RealAgent::Gemini => &[],
    };
    let call = stage.world.run(words.iter().chain(&more).chain(readable));
    let done = stage.with_programs(call).done();
    let seen = stage.model.requests();
    let seen: Vec<_> = seen.iter().map(|one| (&one.target, &one.key, one.has_key)).collect();
    assert_eq!(done.json()["reason"], "exited", "{done}\n{seen:#?}");
    assert_eq!(done.code(), 0, "{done}\n{seen:#?}");
    stage.assert_script_is_played();
    stage.assert_only_this_host_was_used(service(stage.agent).0);
    // The last request came with another token than the first.
    let conversation = stage.model.conversation();
    let (first, last) = (&conversation[0].key, &conversation[conversation.len() - 1].key);
    assert_ne!(first, last, "{seen:#?}");
    if stage.agent == RealAgent::Codex {
        // The agent does not know its account: the proxy adds it.
        assert!(conversation.iter().all(|one| one.account.as_deref() == Some(ACCOUNT)));
    }
    assert_eq!(endpoint.reused(), Vec::<String>::new());
    let id = done.json()["id"].as_str().unwrap().to_owned();
    assert!(!stage.events(&id, EventKind::LoginRefreshed).is_empty());
    assert!(stage.patch(&id).contains("+made\n"));
    // No part of the login is in anything of the run's.
    let (home, work) = (stage.lab.home(), stage.lab.work());
    let secrets = endpoint.access_tokens().into_iter().chain(endpoint.refresh_tokens());
    for secret in secrets.chain([ACCOUNT.to_owned()]) {
        let found = files_with(&secret, &[home.clone(), work.clone()]);
        assert!(found.is_empty(), "{secret} is in {found:?}");
    }
    assert_ne!(files_with("All is done.", &[home]), Vec::<std::path::PathBuf>::new());
    stage.lab.assert_all_sound();
    stage.lab.assert_nothing_lives(&stage.lab.runs());
}

#[test]
#[ignore = "needs the real agents: cargo xtask test agents"]
fn real_claude_outlives_its_token() {
    outlives_its_token(RealAgent::Claude);
}

#[test]
#[ignore = "needs the real agents: cargo xtask test agents"]
fn real_codex_outlives_its_token() {
    outlives_its_token(RealAgent::Codex);
}

#[test]
#[ignore = "needs the real agents: cargo xtask test agents"]
fn real_gemini_outlives_its_token() {
    outlives_its_token(RealAgent::Gemini);
}
