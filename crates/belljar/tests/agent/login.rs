//! `agent.auth = "login"`: runs that live longer than their tokens, in the test network, with a token endpoint of the
//! test's own. The agent is the stand-in; what its service received is counted outside.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use belljar::spec::EventKind;
use belljar_testkit::{
    AccessForm, Actor, Call, EndpointMode, Lab, LabWorld, TokenEndpoint, built, children_of,
    processes_of, processes_with, send, until,
};
use rustix::process::Signal;
use serde_json::{Value, json};

/// As long as a real token would be for hours.
const LIFETIME: Duration = Duration::from_secs(6);
/// Longer than a start takes on a busy machine.
const UNHURRIED: Duration = Duration::from_secs(30);
const FIRST: &str = "refresh-token-of-the-host";

/// An agent: its program, its login file, its form of tokens, and an address of its service.
struct Kind {
    name: &'static str,
    file: &'static str,
    form: AccessForm,
    service: &'static str,
}

const CLAUDE: Kind = Kind {
    name: "claude",
    file: ".claude/.credentials.json",
    form: AccessForm::Opaque,
    service: "https://api.anthropic.com/v1/messages",
};
const CODEX: Kind = Kind {
    name: "codex",
    file: ".codex/auth.json",
    form: AccessForm::Jwt,
    service: "https://chatgpt.com/backend-api/codex/responses",
};
const GEMINI: Kind = Kind {
    name: "gemini",
    file: ".gemini/oauth_creds.json",
    form: AccessForm::Opaque,
    service: "https://cloudcode-pa.googleapis.com/v1internal:generateContent",
};

fn now_ms() -> u64 {
    UNIX_EPOCH.elapsed().unwrap().as_millis() as u64
}

fn login(kind: &Kind, access: &str, refresh: &str, expires: u64) -> String {
    match kind.name {
        "claude" => json!({ "claudeAiOauth": {
            "accessToken": access, "refreshToken": refresh, "expiresAt": expires,
            "scopes": ["user:inference"], "subscriptionType": "max" } }),
        "codex" => json!({
            "OPENAI_API_KEY": null,
            "tokens": { "id_token": access, "access_token": access, "refresh_token": refresh,
                        "account_id": "account-of-the-user" },
            "last_refresh": "2026-01-01T00:00:00Z" }),
        _ => json!({ "access_token": access, "refresh_token": refresh, "expiry_date": expires,
                     "token_type": "Bearer", "scope": "s" }),
    }
    .to_string()
}

struct Stage<'a> {
    lab: &'a Lab,
    world: LabWorld<'a>,
    kind: Kind,
    endpoint: TokenEndpoint,
}

impl<'a> Stage<'a> {
    /// With a login that is valid for `LIFETIME`.
    fn new(lab: &'a Lab, kind: Kind) -> Self {
        Self::with_first(lab, kind, LIFETIME)
    }

    /// With a login that is valid for `first`; those that the endpoint issues live for `LIFETIME`.
    fn with_first(lab: &'a Lab, kind: Kind, first: Duration) -> Self {
        let world = lab.world();
        let endpoint = TokenEndpoint::start(world.pid(), kind.form, FIRST, LIFETIME);
        let program = fs::read(built("examples/stand_in_agent")).unwrap();
        let program = lab.make_file(format!("person/agents/{}", kind.name), program);
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let stage = Self { lab, world, kind, endpoint };
        stage.refresh_at(&stage.endpoint.url);
        stage.host_refreshes_for(first);
        stage
    }

    fn refresh_at(&self, url: &str) {
        let settings = format!("[{}]\ntoken_url = \"{url}\"\n", self.kind.name);
        self.lab.make_file("person/.config/belljar/login.toml", settings);
    }

    fn file(&self) -> PathBuf {
        self.lab.person().join(self.kind.file)
    }

    fn host_refreshes(&self) {
        self.host_refreshes_for(LIFETIME);
    }

    /// As the host's own agent does.
    fn host_refreshes_for(&self, life: Duration) {
        let (access, refresh) = self.endpoint.issue();
        let expires = now_ms() + life.as_millis() as u64;
        let text = login(&self.kind, &access, &refresh, expires);
        let file = self.lab.make_file(Path::new("person").join(self.kind.file), text);
        fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    }

    /// A run whose agent asks its service once a second.
    fn run(&self, seconds: u32, more: &[&str]) -> Call<'a> {
        let script = format!(
            "env > env.txt; cp -r $HOME home-copy 2>/dev/null\n\
             for i in $(seq {seconds}); do curl -s -m 5 -d x {} >> answers.txt; sleep 1; done\n\
             curl -s -m 5 -d x https://platform.claude.com/v1/oauth/token > token-endpoint.txt; true\n",
            self.kind.service
        );
        self.lab.make_file("work/go.sh", script);
        let prompt = "run sh go.sh\nsay All is well.\n";
        let words = ["--agent", self.kind.name, "--prompt", prompt, "-c", "agent.auth=login"];
        let path = format!("{}:/usr/bin:/bin", self.lab.person().join("agents").display());
        let call = self.lab.run(words.iter().chain(more)).env("PATH", path);
        self.world.enter(call)
    }

    /// The tokens with which requests arrived at the service, in their order, each once.
    fn received(&self) -> Vec<String> {
        let mut tokens: Vec<String> = Vec::new();
        for request in self.world.seen().requests {
            let bearer = request.head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                let is_it = name.eq_ignore_ascii_case("authorization");
                is_it.then(|| value.trim().trim_start_matches("Bearer ").to_owned())
            });
            let token = bearer.unwrap_or_else(|| panic!("a request without a token: {request:?}"));
            if tokens.last() != Some(&token) {
                tokens.push(token);
            }
        }
        tokens
    }

    fn events(&self, id: &str, kind: EventKind) -> Vec<Value> {
        let events = self.lab.events(id).into_iter();
        events.filter(|event| event.kind == kind).map(|event| event.data).collect()
    }

    /// No token is in anything that belongs to a run: its files, its environment, its record.
    fn assert_outside(&self) {
        let mut secrets = self.endpoint.access_tokens();
        secrets.extend(self.endpoint.refresh_tokens());
        secrets.push("account-of-the-user".to_owned());
        let mut copies = 0;
        for path in files_below(&self.lab.home()).into_iter().chain(files_below(&self.lab.work())) {
            let content = fs::read(&path).unwrap_or_default();
            copies += usize::from(path.ends_with("env.txt"));
            for secret in &secrets {
                let mut parts = content.windows(secret.len());
                let found = parts.any(|part| part == secret.as_bytes());
                assert!(!found, "{secret} is in {}", path.display());
            }
        }
        assert!(copies > 0, "the environment was not written down, so nothing was checked");
    }

    /// The file is as the agent itself would have written it.
    fn assert_kept(&self) {
        let text = fs::read_to_string(self.file()).unwrap();
        assert!(text.contains(&self.endpoint.valid_refresh_token()), "{text}");
        let mode = self.file().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        // A request that is not answered ends after the run, and what was prepared for its answer goes with it.
        let beside = || fs::read_dir(self.file().parent().unwrap()).unwrap().count();
        assert!(
            until(Duration::from_secs(90), || beside() == 1),
            "something lies beside the login"
        );
        assert_eq!(self.endpoint.reused(), Vec::<String>::new(), "a token was used twice");
    }
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut files = Vec::new();
    for entry in entries.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_below(&entry.path())),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}

/// Entering the network of the token endpoint needs root.
fn lab() -> Option<Lab> {
    rustix::process::geteuid().is_root().then(|| Lab::new(Actor::Me))
}

fn outlives(kind: Kind) {
    let Some(lab) = lab() else { return };
    let stage = Stage::new(&lab, kind);
    let done = stage.run(14, &[]).done();
    done.expect(0).says(&["stays outside the sandbox"]);
    let received = stage.received();
    let issued = stage.endpoint.access_tokens();
    assert!(received.len() >= 3, "{received:?}");
    assert!(received.iter().all(|token| issued.contains(token)), "{received:?}");
    stage.assert_kept();
    stage.assert_outside();
    let id = lab.runs().pop().unwrap();
    let refreshed = stage.events(&id, EventKind::LoginRefreshed);
    assert!(refreshed.len() >= 2, "{refreshed:?}");
    assert!(refreshed.iter().all(|event| event["by"] == "belljar"), "{refreshed:?}");
    assert!(stage.events(&id, EventKind::LoginFailed).is_empty());
    let denied = stage.events(&id, EventKind::EgressDenied);
    assert!(
        denied.iter().any(|event| event["host"] == "platform.claude.com"),
        "the inside reached a token endpoint: {denied:?}"
    );
    let record = lab.record(&id);
    let clean = &record["posture"]["env.clean"];
    assert_eq!(clean["status"], "enforced", "{}", record["posture"]);
    let shown = lab.belljar(["show", &id]).done();
    shown.expect(0).prints(&["login", stage.kind.file]);
}

#[test]
fn a_claude_run_outlives_its_tokens() {
    outlives(CLAUDE);
}

#[test]
fn a_codex_run_outlives_its_tokens() {
    outlives(CODEX);
}

#[test]
fn a_gemini_run_outlives_its_tokens() {
    outlives(GEMINI);
}

#[test]
fn two_runs_at_once_use_each_refresh_token_once() {
    let Some(lab) = lab() else { return };
    let stage = Stage::new(&lab, CLAUDE);
    let runs = [stage.run(14, &[]).spawn(), stage.run(14, &[]).spawn()];
    for run in runs {
        run.done().expect(0);
    }
    let issued = stage.endpoint.access_tokens();
    assert!(stage.received().iter().all(|token| issued.contains(token)));
    stage.assert_kept();
    stage.assert_outside();
    let refreshed = lab.runs().iter().map(|id| stage.events(id, EventKind::LoginRefreshed)).fold(
        Vec::new(),
        |mut all, events| {
            assert!(events.len() >= 2, "{events:?}");
            all.extend(events);
            all
        },
    );
    let by_other = refreshed.iter().filter(|event| event["by"] == "other").count();
    assert!(by_other > 0, "one run uses what the other has refreshed: {refreshed:?}");
}

#[test]
fn what_the_host_refreshes_meanwhile_is_used() {
    let Some(lab) = lab() else { return };
    let stage = Stage::with_first(&lab, CLAUDE, UNHURRIED);
    stage.endpoint.set_mode(EndpointMode::Unavailable);
    let run = stage.run(40, &[]).spawn();
    assert!(until(UNHURRIED, || !stage.world.seen().requests.is_empty()));
    stage.host_refreshes_for(UNHURRIED * 20);
    run.done().expect(0);
    let received = stage.received();
    assert_eq!(received, stage.endpoint.access_tokens()[..received.len()], "{received:?}");
    assert!(received.len() >= 2, "{received:?}");
    let id = lab.runs().pop().unwrap();
    let refreshed = stage.events(&id, EventKind::LoginRefreshed);
    assert_eq!(refreshed[0]["by"], "other", "{refreshed:?}");
    stage.assert_outside();
}

fn kill_proxy(lab: &Lab) {
    let ours = processes_of(&lab.exe);
    let supervisors: Vec<u32> = processes_with("__supervise");
    let proxies: Vec<u32> = processes_with("__egress")
        .into_iter()
        .filter(|pid| {
            let is_child = |of: &u32| ours.contains(of) && children_of(*of).contains(pid);
            supervisors.iter().any(is_child)
        })
        .collect();
    assert!(!proxies.is_empty());
    proxies.into_iter().for_each(|pid| send(pid, Signal::KILL));
}

/// The request to a silent endpoint takes 30 s; the limit of the run is held all the same.
#[test]
fn a_silent_token_endpoint_does_not_suspend_the_run() {
    let Some(lab) = lab() else { return };
    let stage = Stage::with_first(&lab, CLAUDE, UNHURRIED);
    stage.endpoint.set_mode(EndpointMode::Silent);
    let run = stage.run(120, &["--timeout", "28s", "--stop-timeout", "1s"]).spawn();
    assert!(until(Duration::from_secs(60), || stage.endpoint.requests() > 0));
    kill_proxy(&lab); // from now on nothing can use the login
    run.done();
    let id = lab.runs().pop().unwrap();
    let record = lab.record(&id);
    assert_eq!(record["outcome"]["reason"], "deadline", "{record}");
    let wall = record["outcome"]["usage"]["wall_ms"].as_u64().unwrap();
    assert!(wall < 40_000, "the run went on for {wall} ms");
    stage.assert_kept();
}

#[test]
fn a_login_in_a_tool_is_refused() {
    let Some(lab) = lab() else { return };
    let stage = Stage::with_first(&lab, CLAUDE, UNHURRIED * 20);
    // A tool appears at its own path, so it lies where nothing else of the sandbox does.
    let tool = tempfile::Builder::new().prefix("belljar-tool-").tempdir_in("/").unwrap();
    fs::set_permissions(tool.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let share = tool.path().join("share");
    fs::create_dir_all(tool.path().join("bin")).unwrap();
    fs::create_dir(&share).unwrap();
    fs::copy(stage.file(), share.join(".credentials.json")).unwrap();
    let run = || stage.run(1, &["--tool", tool.path().to_str().unwrap()]);
    let refused = run().env("CLAUDE_CONFIG_DIR", &share).done();
    refused.expect(125).says(&["agent's login", "which the run can read"]);
    run().done().expect(0); // with the login that is elsewhere
}

/// A run that could open the lock could hold it, and no run of the user would refresh its login any more.
#[test]
fn the_locks_of_logins_are_given_to_no_run() {
    let Some(lab) = lab() else { return };
    let locks = lab.person().join(".local/state/belljar-logins");
    fs::create_dir_all(&locks).unwrap();
    fs::create_dir_all(lab.person().join(".local/state/other")).unwrap();
    let mount = |path: &Path| {
        let volume = format!("{}:/given:rw", path.display());
        lab.run(["-v", &volume, "--", "true"]).done()
    };
    mount(&locks).expect(125);
    mount(&lab.person().join(".local/state/other")).expect(0);
}

#[test]
fn a_killed_proxy_leaves_the_login_alone() {
    let Some(lab) = lab() else { return };
    let stage = Stage::new(&lab, CLAUDE);
    let run = stage.run(8, &[]).spawn();
    assert!(until(Duration::from_secs(30), || !stage.world.seen().requests.is_empty()));
    kill_proxy(&lab);
    run.done();
    let id = lab.runs().pop().unwrap();
    assert_eq!(stage.events(&id, EventKind::EgressLost).len(), 1);
    stage.assert_kept();
    stage.assert_outside();
}

#[test]
fn a_killed_supervisor_loses_no_login_and_the_run_resumes() {
    let Some(lab) = lab() else { return };
    let stage = Stage::new(&lab, CLAUDE);
    let run = stage.run(30, &["--max-iterations", "2", "--name", "night"]).spawn();
    // An answer that was not received is lost; one that was is in the file.
    let is_kept = || {
        let text = fs::read_to_string(stage.file()).unwrap();
        stage.endpoint.requests() >= 1 && text.contains(&stage.endpoint.valid_refresh_token())
    };
    assert!(until(Duration::from_secs(60), is_kept));
    let ours = processes_of(&lab.exe);
    let supervisors = processes_with("__supervise").into_iter();
    supervisors.filter(|pid| ours.contains(pid)).for_each(|pid| send(pid, Signal::KILL));
    assert_ne!(run.done().code(), 0);
    stage.assert_kept();
    std::thread::sleep(LIFETIME); // by now the token has expired
    lab.make_file("work/go.sh", "");
    let before = stage.endpoint.requests();
    let path = format!("{}:/usr/bin:/bin", lab.person().join("agents").display());
    let call = lab.belljar(["resume", "night", "--from", "0"]).env("PATH", path);
    stage.world.enter(call).done().expect(0);
    assert!(stage.endpoint.requests() > before, "the expired login is refreshed at the start");
    stage.assert_kept();
}

#[test]
fn a_login_that_cannot_be_refreshed_ends_the_run_and_says_what_to_do() {
    let Some(lab) = lab() else { return };
    for (mode, why) in [
        (EndpointMode::Refuse, "invalid_grant"),
        (EndpointMode::Flood, "more than"),
        (EndpointMode::Unavailable, "503"),
    ] {
        let stage_lab = Lab::new(Actor::Me);
        let stage = Stage::with_first(&stage_lab, CLAUDE, UNHURRIED);
        stage.endpoint.set_mode(mode);
        let done = stage.run(120, &[]).done();
        assert_ne!(done.code(), 0, "{done}");
        let id = stage_lab.runs().pop().unwrap();
        let record = stage_lab.record(&id);
        assert_eq!(record["outcome"]["reason"], "login_expired", "{mode:?}: {done}");
        let text = format!("{}{}", done.out(), done.err());
        let words: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("belljar resume {id}")), "{mode:?}: {done}");
        assert!(words.contains("log in on the host"), "{mode:?}: {done}");
        let failed = stage.events(&id, EventKind::LoginFailed);
        assert!(failed[0]["why"].as_str().unwrap().contains(why), "{mode:?}: {failed:?}");
        if mode == EndpointMode::Refuse {
            assert_eq!(stage.endpoint.requests(), 1, "a refused token was sent again");
        }
        stage.assert_kept();
        stage.assert_outside();
    }
    drop(lab);
}

#[test]
fn a_missing_or_foreign_login_is_named_before_anything_starts() {
    let Some(lab) = lab() else { return };
    let stage = Stage::new(&lab, CODEX);
    fs::write(stage.file(), "{\"OPENAI_API_KEY\":\"sk-secret-key\"}").unwrap();
    let done = stage.run(1, &[]).done();
    done.expect(125).says(&["agent.auth", "auth = \"secret\""]);
    assert!(!done.err().contains("sk-secret-key"), "{done}");
    fs::remove_file(stage.file()).unwrap();
    stage.run(1, &[]).done().expect(125).says(&["does not exist", "codex login"]);
    lab.assert_nothing_was_made();
    stage.host_refreshes();
    let dry = stage.run(1, &["--dry-run"]).done();
    dry.expect(0).says(&["logs in with", "valid for"]).prints(&["env.clean"]);
}

/// A static answer in TLS: the certificate decides whether it is used.
#[test]
fn a_token_endpoint_is_verified() {
    let Some(lab) = lab() else { return };
    let stage = Stage::new(&lab, GEMINI);
    let answer = json!({ "access_token": "access-over-tls", "expires_in": 3600 });
    stage.world.serve("token.json", answer.to_string());
    let expired = login(&stage.kind, "old", "refresh", now_ms() - 1000);
    fs::write(stage.file(), &expired).unwrap();
    stage.refresh_at("https://untrusted.example/files/token.json");
    let refused = stage.run(1, &[]).done();
    refused.expect(125).says(&["untrusted.example", "certificate"]);
    assert_eq!(fs::read_to_string(stage.file()).unwrap(), expired);
    stage.refresh_at("http://ok.example/files/token.json");
    stage.run(1, &[]).done().expect(125).says(&["only https://"]);
    stage.refresh_at("https://ok.example/files/token.json");
    stage.run(1, &[]).done().expect(0);
    assert!(fs::read_to_string(stage.file()).unwrap().contains("access-over-tls"));
    // A manifest has no such key.
    lab.make_file("work/belljar.toml", "[login.gemini]\ntoken_url = \"https://other.example/\"\n");
    stage.run(1, &[]).done().says(&["unknown key"]);
}
