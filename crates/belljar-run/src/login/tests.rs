//! Logins of the three agents against a token endpoint on loopback.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use belljar_spec::egress::{LoginPart, LoginSource};
use belljar_spec::manifest::AgentKind;
use serde_json::{Value, json};

use super::file::LoginFile;
use super::renew::By;
use super::*;

const AGENTS: [AgentKind; 3] = [AgentKind::Claude, AgentKind::Codex, AgentKind::Gemini];
const OLD: &str = "old-access-token";
const OLD_REFRESH: &str = "old-refresh-token";

/// A token endpoint that answers every request with what the function returns.
struct Endpoint {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Endpoint {
    fn start(mut answer: impl FnMut(&str) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://127.0.0.1:{}/token", listener.local_addr().unwrap().port());
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, stopped) = (requests.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let mut stream = stream.unwrap();
                let body = read_body(&mut stream);
                seen.lock().unwrap().push(body.clone());
                let _ = stream.write_all(&answer(&body)); // a client that has enough closes
            }
        });
        Self { url, requests, stop, thread: Some(thread) }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ =
            std::net::TcpStream::connect(self.url["http://".len()..].split('/').next().unwrap());
        let _ = self.thread.take().unwrap().join();
    }
}

fn read_body(stream: &mut impl Read) -> String {
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return body.to_owned();
            }
        }
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return String::new(),
            Ok(length) => bytes.extend_from_slice(&part[..length]),
        }
    }
}

fn http(status: u16, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn new_tokens(number: usize) -> Vec<u8> {
    http(
        200,
        &json!({
            "access_token": format!("access-{number}"), "refresh_token": format!("refresh-{number}"),
            "expires_in": 20, "token_type": "Bearer", "scope": "a b",
        })
        .to_string(),
    )
}

/// The text of a login that expires at that time.
fn text(agent: AgentKind, access: &str, refresh: &str, expires: u64) -> String {
    match agent {
        AgentKind::Claude => format!(
            "{{\"claudeAiOauth\":{{\"accessToken\":\"{access}\",\"refreshToken\":\"{refresh}\",\"expiresAt\":{expires},\
             \"scopes\":[\"user:inference\"],\"subscriptionType\":\"max\",\"unknown\":1.10}},\"mcpOAuth\":{{\"x\":[]}}}}"
        ),
        AgentKind::Codex => {
            let id = jwt::placeholder(&json!({
                "https://api.openai.com/auth": { "chatgpt_plan_type": "pro", "chatgpt_account_id": "acc-1" }
            }));
            let last = jiff::Timestamp::from_millisecond(expires as i64 - 8 * 24 * 3600 * 1000);
            format!(
                "{{\n  \"OPENAI_API_KEY\": null,\n  \"tokens\": {{\n    \"id_token\": \"{id}\",\n    \"access_token\": \"{access}\",\n    \
                 \"refresh_token\": \"{refresh}\",\n    \"account_id\": \"acc-1\"\n  }},\n  \"last_refresh\": \"{}\",\n  \"unknown\": 1.10\n}}",
                last.unwrap()
            )
        }
        _ => format!(
            "{{\"access_token\":\"{access}\",\"scope\":\"s\",\"token_type\":\"Bearer\",\"id_token\":\"i\",\
             \"expiry_date\":{expires},\"refresh_token\":\"{refresh}\",\"unknown\":1.10}}"
        ),
    }
}

struct Place {
    directory: tempfile::TempDir,
    source: LoginSource,
}

impl Place {
    /// With a login that has expired.
    fn new(agent: AgentKind, url: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let login = directory.path().join("agent");
        std::fs::create_dir(&login).unwrap();
        let file = login.join("login.json");
        std::fs::write(&file, text(agent, OLD, OLD_REFRESH, now() - 1000)).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        let lock = directory.path().join("locks/a.lock");
        let source = LoginSource {
            agent,
            part: LoginPart::AccessToken,
            file: file.as_path().into(),
            lock: lock.as_path().into(),
            token_url: url.to_owned(),
        };
        Self { directory, source }
    }

    fn file(&self) -> &Path {
        self.source.file.as_path()
    }

    fn draft(&self) -> PathBuf {
        self.draft_of(OLD_REFRESH)
    }

    /// As it is named while this refresh token is being spent.
    fn draft_of(&self, refresh: &str) -> PathBuf {
        let hash = blake3::hash(refresh.as_bytes()).to_hex();
        self.file().with_file_name(format!(".login.json.belljar-{}", &hash[..32]))
    }

    fn renew(&self) -> Result<Renewal, NotRenewed> {
        renew(
            &self.source,
            &Attempt { held: Some(OLD), refused: None, cancel: &AtomicBool::new(false) },
        )
    }

    /// What is beside the login.
    fn others(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.file().parent().unwrap()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "login.json").collect()
    }
}

#[test]
fn each_format_is_refreshed_and_everything_else_stays() {
    for agent in AGENTS {
        let endpoint = Endpoint::start(|_| new_tokens(1));
        let place = Place::new(agent, &endpoint.url);
        let before = std::fs::read_to_string(place.file()).unwrap();
        let renewal = place.renew().unwrap();
        assert_eq!(renewal.by, By::Belljar);
        assert_eq!(renewal.tokens.access.as_str(), "access-1");
        let after = std::fs::read_to_string(place.file()).unwrap();
        assert!(!after.contains(OLD) && !after.contains(OLD_REFRESH), "{after}");
        assert!(after.contains("refresh-1") && after.contains("1.10"), "{after}");
        let (before, after): (Value, Value) =
            (serde_json::from_str(&before).unwrap(), serde_json::from_str(&after).unwrap());
        for unchanged in
            ["/unknown", "/mcpOAuth", "/claudeAiOauth/scopes", "/tokens/account_id", "/scope"]
        {
            assert_eq!(
                before.pointer(unchanged),
                after.pointer(unchanged),
                "{agent:?} {unchanged}"
            );
        }
        let read = LoginFile::read(&place.source).unwrap().tokens;
        assert!(!read.is_expired(now()), "{agent:?}");
        let mode = place.file().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        assert!(place.others().is_empty(), "{:?}", place.others());
        let request = endpoint.requests().pop().unwrap();
        assert!(request.contains(OLD_REFRESH) && !request.contains(OLD), "{request}");
        let is_form = request.starts_with("grant_type=refresh_token&");
        assert_eq!(is_form, agent == AgentKind::Gemini, "{request}");
    }
}

#[test]
fn what_the_host_has_refreshed_is_used_and_nothing_is_spent() {
    for agent in AGENTS {
        let endpoint = Endpoint::start(|_| new_tokens(1));
        let place = Place::new(agent, &endpoint.url);
        let host = text(agent, "from-host", "refresh-of-host", now() + 60_000);
        std::fs::write(place.file(), &host).unwrap();
        let renewal = place.renew().unwrap();
        assert_eq!((renewal.by, renewal.tokens.access.as_str()), (By::Other, "from-host"));
        assert!(endpoint.requests().is_empty());
        assert_eq!(std::fs::read_to_string(place.file()).unwrap(), host);
    }
}

#[test]
fn many_at_once_spend_a_refresh_token_once() {
    let mut number = 0;
    let endpoint = Endpoint::start(move |_| {
        number += 1;
        std::thread::sleep(std::time::Duration::from_millis(100));
        new_tokens(number)
    });
    let place = Place::new(AgentKind::Claude, &endpoint.url);
    let renewals: Vec<Renewal> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| place.renew().unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(endpoint.requests().len(), 1);
    assert!(renewals.iter().all(|renewal| renewal.tokens.access.as_str() == "access-1"));
    assert_eq!(renewals.iter().filter(|renewal| renewal.by == By::Belljar).count(), 1);
}

#[test]
fn a_login_that_the_host_makes_during_the_request_is_not_replaced() {
    let place = Place::new(AgentKind::Claude, "");
    let (file, host) =
        (place.file().to_owned(), text(AgentKind::Claude, "anew", "refresh-anew", now() + 60_000));
    let written = host.clone();
    let endpoint = Endpoint::start(move |_| {
        std::fs::write(&file, &written).unwrap();
        new_tokens(1)
    });
    let source = LoginSource { token_url: endpoint.url.clone(), ..place.source.clone() };
    let attempt = Attempt { held: Some(OLD), refused: None, cancel: &AtomicBool::new(false) };
    let renewal = renew(&source, &attempt).unwrap();
    assert_eq!((renewal.by, renewal.tokens.access.as_str()), (By::Other, "anew"));
    assert_eq!(std::fs::read_to_string(place.file()).unwrap(), host);
    assert!(place.others().is_empty());
}

#[test]
fn hostile_and_failing_answers_change_nothing() {
    let token = |access: Value, more: Value| {
        let mut body = json!({ "access_token": access, "refresh_token": "r", "expires_in": 20 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        http(200, &body.to_string())
    };
    let cases: Vec<(Vec<u8>, Lasting)> = vec![
        (http(200, &"x".repeat(200_000)), Lasting::Passing),
        (http(200, "<html>"), Lasting::Passing),
        (http(200, "[]"), Lasting::Passing),
        (http(200, "{}"), Lasting::Passing),
        (token(json!(7), json!({})), Lasting::Passing),
        (token(json!("a b"), json!({})), Lasting::Passing),
        (token(json!("a\r\nx: y"), json!({})), Lasting::Passing),
        (token(json!("a".repeat(20_000)), json!({})), Lasting::Passing),
        (token(json!("a"), json!({ "expires_in": 0 })), Lasting::Passing),
        (token(json!("a"), json!({ "expires_in": -5 })), Lasting::Passing),
        (token(json!("a"), json!({ "expires_in": "soon" })), Lasting::Passing),
        (token(json!("a"), json!({ "refresh_token": {} })), Lasting::Passing),
        (http(302, ""), Lasting::Passing),
        (http(503, "{\"error\":\"busy\"}"), Lasting::Passing),
        (http(400, "captive portal"), Lasting::Passing),
        (http(400, "{\"error\":\"invalid_grant\"}"), Lasting::Final),
        (http(401, "{\"error\":{\"code\":\"refresh_token_reused\"}}"), Lasting::Final),
        (http(400, &json!({ "error": OLD_REFRESH }).to_string()), Lasting::Final),
    ];
    for agent in AGENTS {
        for (answer, lasting) in cases.clone() {
            let shown = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
            let endpoint = Endpoint::start(move |_| answer.clone());
            let place = Place::new(agent, &endpoint.url);
            let before = std::fs::read(place.file()).unwrap();
            let NotRenewed { error, refused } = place.renew().unwrap_err();
            assert_eq!(error.lasting(), lasting, "{shown}: {error}");
            assert_eq!(refused.is_some(), lasting == Lasting::Final, "{shown}");
            let message = error.to_string();
            assert!(!message.contains(OLD_REFRESH) && !message.contains(OLD), "{message}");
            assert_eq!(std::fs::read(place.file()).unwrap(), before, "{shown}");
            assert!(place.others().is_empty(), "{shown}");
        }
    }
    let down = Place::new(AgentKind::Claude, "http://127.0.0.1:1/token");
    let NotRenewed { error, .. } = down.renew().unwrap_err();
    assert_eq!(error.lasting(), Lasting::Passing, "{error}");
    assert!(down.others().is_empty());
}

#[test]
fn a_refused_refresh_token_is_not_sent_again() {
    let endpoint = Endpoint::start(|_| http(400, "{\"error\":\"invalid_grant\"}"));
    let place = Place::new(AgentKind::Claude, &endpoint.url);
    let refused = place.renew().unwrap_err().refused;
    let cancel = AtomicBool::new(false);
    let again = renew(&place.source, &Attempt { held: Some(OLD), refused, cancel: &cancel });
    let NotRenewed { error, refused: still } = again.unwrap_err();
    assert!(matches!(error, LoginError::RefusedBefore { .. }), "{error}");
    assert_eq!((still, endpoint.requests().len()), (refused, 1));
    // A new login on the host is another token.
    let host = text(AgentKind::Claude, OLD, "another", now() - 1000);
    std::fs::write(place.file(), host).unwrap();
    renew(&place.source, &Attempt { held: Some(OLD), refused, cancel: &cancel }).unwrap_err();
    assert_eq!(endpoint.requests().len(), 2);
}

#[test]
fn nothing_is_spent_where_the_new_tokens_could_not_be_kept() {
    let endpoint = Endpoint::start(|_| new_tokens(1));
    let place = Place::new(AgentKind::Claude, &endpoint.url);
    std::fs::create_dir(place.draft()).unwrap(); // even root cannot write there
    place.renew().unwrap_err();
    assert!(endpoint.requests().is_empty());
    std::fs::remove_dir(place.draft()).unwrap();
    place.renew().unwrap();
    assert_eq!(endpoint.requests().len(), 1);
}

#[test]
fn tokens_of_a_killed_run_are_taken_over() {
    for agent in AGENTS {
        let endpoint = Endpoint::start(|_| new_tokens(1));
        let place = Place::new(agent, &endpoint.url);
        let written = text(agent, "saved", "refresh-saved", now() + 60_000);
        std::fs::write(place.draft(), &written).unwrap();
        let renewal = place.renew().unwrap();
        assert_eq!(renewal.tokens.access.as_str(), "saved", "{agent:?}");
        assert!(endpoint.requests().is_empty() && place.others().is_empty());
        let now_there = LoginFile::read(&place.source).unwrap();
        assert_eq!(now_there.tokens.refresh.as_ref().unwrap().as_str(), "refresh-saved");
    }
    // One that was killed before the answer left only space; a link is not followed.
    for plant in
        [&|path: &Path| std::fs::write(path, " ".repeat(999)).unwrap() as (), &|path: &Path| {
            symlink("/etc/passwd", path).unwrap()
        }] as [&dyn Fn(&Path); 2]
    {
        let endpoint = Endpoint::start(|_| new_tokens(1));
        let place = Place::new(AgentKind::Claude, &endpoint.url);
        plant(&place.draft());
        assert_eq!(place.renew().unwrap().by, By::Belljar);
        assert!(place.others().is_empty());
        assert!(std::fs::read_to_string("/etc/passwd").unwrap().contains("root"));
    }
}

/// Renews while the host changes the file during the request.
fn renew_during(
    place: &Place,
    answer: Vec<u8>,
    host: impl Fn(&Path) + Send + 'static,
) -> Result<Renewal, NotRenewed> {
    let file = place.file().to_owned();
    let endpoint = Endpoint::start(move |_| {
        host(&file);
        answer.clone()
    });
    let source = LoginSource { token_url: endpoint.url.clone(), ..place.source.clone() };
    let attempt = Attempt { held: Some(OLD), refused: None, cancel: &AtomicBool::new(false) };
    renew(&source, &attempt)
}

#[test]
fn a_logout_during_the_request_stays_a_logout() {
    for agent in AGENTS {
        let place = Place::new(agent, "");
        let failed =
            renew_during(&place, new_tokens(1), |file| std::fs::remove_file(file).unwrap());
        let NotRenewed { error, .. } = failed.unwrap_err();
        assert!(matches!(error, LoginError::Missing { .. }), "{error}");
        assert!(!place.file().exists() && place.others().is_empty(), "{:?}", place.others());
    }
}

#[test]
fn an_edit_during_the_request_is_kept_beside_the_new_tokens() {
    for agent in AGENTS {
        let place = Place::new(agent, "");
        let renewal = renew_during(&place, new_tokens(1), |file| {
            let text = std::fs::read_to_string(file).unwrap();
            std::fs::write(file, text.replace("1.10", "2.20")).unwrap();
        });
        assert_eq!(renewal.unwrap().by, By::Belljar);
        let text = std::fs::read_to_string(place.file()).unwrap();
        assert!(text.contains("2.20") && text.contains("refresh-1"), "{text}");
        assert!(place.others().is_empty(), "{:?}", place.others());
    }
}

#[test]
fn another_account_during_the_request_is_kept() {
    for agent in AGENTS {
        for (expires, is_used) in [(60_000, true), (-1000, false)] {
            let place = Place::new(agent, "");
            let expires = now().checked_add_signed(expires).unwrap();
            let other = text(agent, "other-account", "refresh-of-other", expires);
            let written = other.clone();
            let renewed = renew_during(&place, new_tokens(1), move |file| {
                std::fs::write(file, &written).unwrap();
            });
            match renewed {
                Ok(renewal) => assert!(is_used && renewal.by == By::Other),
                Err(NotRenewed { error, .. }) => {
                    assert!(!is_used, "{error}");
                    assert_eq!(error.lasting(), Lasting::Passing, "{error}");
                }
            }
            assert_eq!(std::fs::read_to_string(place.file()).unwrap(), other);
            assert!(place.others().is_empty(), "{:?}", place.others());
        }
    }
}

/// A file that cannot be read just now, for example because the host is writing it.
#[test]
fn tokens_that_could_not_be_put_in_place_are_not_lost() {
    for agent in AGENTS {
        let place = Place::new(agent, "");
        let before = std::fs::read_to_string(place.file()).unwrap();
        let failed = renew_during(&place, new_tokens(1), |file| std::fs::write(file, "{").unwrap());
        let NotRenewed { error, .. } = failed.unwrap_err();
        assert_eq!(error.lasting(), Lasting::Passing, "{error}");
        assert_eq!(std::fs::read_to_string(place.file()).unwrap(), "{");
        assert_eq!(place.others().len(), 1);
        // The host has written it, with an edit of its own: the next attempt joins the two.
        std::fs::write(place.file(), before.replace("1.10", "2.20")).unwrap();
        let renewal = place.renew().unwrap(); // there is no endpoint to ask
        assert_eq!(renewal.tokens.access.as_str(), "access-1");
        let text = std::fs::read_to_string(place.file()).unwrap();
        assert!(text.contains("2.20") && text.contains("refresh-1"), "{text}");
        assert!(place.others().is_empty(), "{:?}", place.others());
    }
}

#[test]
fn a_draft_of_another_login_is_not_used() {
    let endpoint = Endpoint::start(|_| new_tokens(1));
    let place = Place::new(AgentKind::Claude, &endpoint.url);
    let saved = text(AgentKind::Claude, "saved", "refresh-saved", now() + 60_000);
    std::fs::write(place.draft_of("another-refresh-token"), saved).unwrap();
    assert_eq!(place.renew().unwrap().tokens.access.as_str(), "access-1");
    assert!(place.others().is_empty(), "{:?}", place.others());
}

#[test]
fn special_bits_of_the_mode_are_not_copied() {
    let endpoint = Endpoint::start(|_| new_tokens(1));
    let place = Place::new(AgentKind::Claude, &endpoint.url);
    std::fs::set_permissions(place.file(), PermissionsExt::from_mode(0o6640)).unwrap();
    place.renew().unwrap();
    assert_eq!(place.file().metadata().unwrap().permissions().mode() & 0o7777, 0o640);
}

/// Only root can give a file away.
#[test]
fn a_login_of_another_user_is_refused_to_root_too() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let endpoint = Endpoint::start(|_| new_tokens(1));
    let place = Place::new(AgentKind::Claude, &endpoint.url);
    std::os::unix::fs::chown(place.file(), Some(12_345), None).unwrap();
    let NotRenewed { error, .. } = place.renew().unwrap_err();
    assert!(error.to_string().contains("belongs to another user"), "{error}");
    assert!(endpoint.requests().is_empty());
    std::os::unix::fs::chown(place.file(), Some(0), None).unwrap();
    place.renew().unwrap();
}

#[test]
fn a_life_of_centuries_is_not_believed() {
    let far = jwt::placeholder(&json!({ "exp": 99_999_999_999_u64 }));
    let body = json!({ "access_token": far, "expires_in": 20 }).to_string();
    let endpoint = Endpoint::start(move |_| http(200, &body));
    let place = Place::new(AgentKind::Claude, &endpoint.url);
    let expires = place.renew().unwrap().tokens.expires.unwrap();
    assert!(expires <= now() + 366 * 24 * 3600 * 1000, "{expires}");
    assert!(expires > now() + 365 * 24 * 3600 * 1000, "{expires}");
}

#[test]
fn an_attempt_prints_no_token() {
    let attempt = Attempt { held: Some(OLD), refused: None, cancel: &AtomicBool::new(false) };
    let shown = format!("{attempt:?}");
    assert!(shown.contains("Attempt") && !shown.contains(OLD), "{shown}");
}

#[test]
fn a_link_to_the_login_stays_a_link() {
    let endpoint = Endpoint::start(|_| new_tokens(1));
    let mut place = Place::new(AgentKind::Claude, &endpoint.url);
    let real = place.file().to_owned();
    let link = place.directory.path().join("link.json");
    symlink(&real, &link).unwrap();
    place.source.file = link.as_path().into();
    place.renew().unwrap();
    assert!(link.is_symlink() && !real.is_symlink());
    assert!(std::fs::read_to_string(&real).unwrap().contains("access-1"));
}

#[test]
fn a_file_that_is_no_login_is_named_with_the_reason() {
    for (agent, content, why) in [
        (AgentKind::Claude, "{}", "no claudeAiOauth"),
        (AgentKind::Claude, "no json", "not a JSON object"),
        (
            AgentKind::Claude,
            "{\"claudeAiOauth\":{\"accessToken\":\"a\\nb\"}}",
            "accessToken is not a token",
        ),
        (AgentKind::Codex, "{\"OPENAI_API_KEY\":\"sk-1\"}", "use auth = \"secret\""),
        (AgentKind::Codex, "{\"tokens\":{}}", "no access_token"),
        (AgentKind::Gemini, "[]", "not a JSON object"),
    ] {
        let place = Place::new(agent, "http://127.0.0.1:1/token");
        std::fs::write(place.file(), content).unwrap();
        let error = LoginFile::read(&place.source).err().unwrap().to_string();
        assert!(error.contains(why) && !error.contains("sk-1"), "{error}");
    }
    let place = Place::new(AgentKind::Codex, "");
    std::fs::remove_file(place.file()).unwrap();
    let error = LoginFile::read(&place.source).err().unwrap().to_string();
    assert!(error.contains("codex login"), "{error}");
}

#[test]
fn the_placeholder_is_a_login_that_never_expires_and_holds_nothing() {
    let place = Place::new(AgentKind::Codex, "");
    let tokens = LoginFile::read(&place.source).unwrap().tokens;
    assert_eq!((tokens.account.as_deref(), tokens.plan.as_deref()), (Some("acc-1"), Some("pro")));
    let (path, content) = preset::placeholder_file(AgentKind::Codex, Some(&tokens)).unwrap();
    assert_eq!(path, ".codex/auth.json");
    for secret in [OLD, OLD_REFRESH, "acc-1"] {
        assert!(!content.contains(secret), "{content}");
    }
    let inside = format::parse(&place.source, &content).unwrap();
    assert_eq!(inside.account, None, "codex would look for it in the service's list of accounts");
    assert!(inside.expires.unwrap() > now() + 10 * 365 * 24 * 3600 * 1000);
    assert_eq!(inside.plan.as_deref(), Some("pro"));
}
