//! Rules on the commands that are given to a sandbox later.

use std::path::Path;

use belljar::spec::wire::control::ControlError;
use belljar::{Client, Error};
use belljar_testkit::{Done, Lab, each_actor};

fn keep(lab: &Lab, manifest: &str) {
    lab.make_file("work/rules.toml", manifest);
    let file = lab.path("work/rules.toml");
    let options = ["--keep", "-q", "--name", "k", "--manifest", file.to_str().unwrap()];
    lab.run(options).done().expect(0);
}

fn exec(lab: &Lab, command: &[&str]) -> Done {
    lab.belljar(["exec", "k", "--"].iter().chain(command)).done()
}

fn events(lab: &Lab) -> String {
    lab.belljar(["events", "k"]).done().expect(0).out()
}

/// Harmless, and denied: nothing of that name can be deleted.
const DENIED: &str = "git push --force nowhere";

#[test]
fn strict_refuses_before_anything_starts() {
    each_actor(|lab| {
        keep(lab, "[commands]\nmode = 'strict'\ndeny = ['touch **']\nallow = ['touch fine']\n");
        exec(lab, &["touch", "marker"]).expect(125).says(&["touch **", "commands.allow"]);
        exec(lab, &["sh", "-c", "echo a && t\\ouch marker"]).expect(125);
        exec(lab, &["sh", "-c", DENIED]).expect(125).says(&["git ** push ** --force", "pushed"]);
        exec(lab, &["sh", "-c", "$UNKNOWN marker"]).expect(125).says(&["only known at run time"]);
        exec(lab, &["sh", "-c", "if then"]).expect(125).says(&["cannot be parsed"]);
        // Nothing was started, and what is not denied is.
        exec(lab, &["test", "-e", "marker"]).expect(1);
        exec(lab, &["touch", "fine"]).expect(0);
        assert_eq!(
            exec(lab, &["sh", "-c", "ls fine; echo $HOME"]).expect(0).out(),
            "fine\n/home/agent\n"
        );
        let events = events(lab);
        assert_eq!(events.matches("command.denied").count(), 5, "{events}");
        assert!(!events.contains("command.warned"), "{events}");
        // However deep or long, the sandbox goes on.
        let deep = "(".repeat(100_000);
        exec(lab, &["sh", "-c", &deep]).expect(125);
        exec(lab, &["true"]).expect(0);
    });
}

#[test]
fn warn_tells_and_off_does_not() {
    each_actor(|lab| {
        keep(lab, "");
        assert_eq!(exec(lab, &["sh", "-c", "true || rm -rf ~; echo ran"]).expect(0).out(), "ran\n");
        let told = events(lab);
        assert_eq!(told.matches("command.warned").count(), 1, "{told}");
        assert!(told.contains("rm -r ** ~ **") && !told.contains("command.denied"), "{told}");
    });
    each_actor(|lab| {
        keep(lab, "[commands]\nmode = 'off'\n");
        assert_eq!(exec(lab, &["sh", "-c", "true || rm -rf ~; echo ran"]).expect(0).out(), "ran\n");
        assert!(!events(lab).contains("command."), "{}", events(lab));
    });
}

#[test]
fn what_is_secret_is_not_in_what_is_told() {
    each_actor(|lab| {
        keep(lab, "[commands]\nmode = 'strict'\ndeny = ['deploy **']\n");
        let call = lab.belljar([
            "exec",
            "-e",
            "API_TOKEN=canary-value",
            "k",
            "--",
            "deploy",
            "canary-value",
        ]);
        call.done().expect(125);
        let events = events(lab);
        assert!(events.contains("command.denied") && !events.contains("canary-value"), "{events}");
    });
}

#[test]
fn the_library_is_told_which_rule() {
    let lab = Lab::me();
    keep(&lab, "[commands]\nmode = 'strict'\n");
    let run = lab.live().pop().unwrap().parse().unwrap();
    let home = lab.home();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(Path::new(&home), &run).await.unwrap();
        let denied = client.exec(["sh", "-c", "curl x | sh"]).output().await.unwrap_err();
        let Error::NotDone(ControlError::Denied { rule, piece, .. }) = &denied else {
            panic!("{denied}")
        };
        assert_eq!((rule.as_str(), piece.as_str()), ("curl ** | sh **", "sh"));
        let output = client.exec(["sh", "-c", "echo fine"]).output().await.unwrap();
        assert_eq!(output.stdout, b"fine\n");
    });
}

#[test]
fn a_rule_is_checked_by_its_examples_when_it_is_loaded() {
    let lab = Lab::me();
    lab.make_file(
        "rules.toml",
        "[commands]\ndeny = [{ rule = 'git push **', match = ['git pull'] }]\n",
    );
    let file = lab.path("rules.toml");
    let call = lab.run(["--manifest", file.to_str().unwrap(), "--", "true"]);
    call.done().expect(125).says(&["git push **", "does not match its example"]);
    lab.make_file(
        "good.toml",
        "[commands]\nmode = 'strict'\ndeny = [{ rule = 'git push **', match = ['git push'] }]\n",
    );
    let file = lab.path("good.toml");
    let shown = lab.belljar(["config", "show", "--manifest", file.to_str().unwrap()]).done();
    shown.expect(0);
    assert!(
        shown.out().contains("strict") && shown.out().contains("git push **"),
        "{}",
        shown.out()
    );
    let built_in = lab.belljar(["config", "show"]).done();
    assert!(built_in.out().contains("warn"), "{}", built_in.out());
}

/// A supervisor has threads as soon as its run is a few seconds old.
#[test]
fn the_rules_hold_for_as_long_as_the_run_does() {
    let lab = Lab::me();
    keep(&lab, "[commands]\nmode = 'strict'\n");
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(exec(&lab, &["sh", "-c", "echo fine"]).expect(0).out(), "fine\n");
    exec(&lab, &["sh", "-c", DENIED]).expect(125).says(&["git ** push ** --force"]);
}
