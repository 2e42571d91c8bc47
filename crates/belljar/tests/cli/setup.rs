//! `belljar setup`: who it is for, what it prints, and the files for other programs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use belljar::spec::env;
use belljar_testkit::{Actor, Lab, as_root, test_user};
use serde_json::Value;

#[test]
fn an_ordinary_user_is_shown_commands_and_changes_nothing() {
    if test_user().is_none() {
        eprintln!("NOT CHECKED: as an ordinary user (needs root and the user belljar-test)");
        return;
    }
    let lab = Lab::new(Actor::User);
    let shown = lab.belljar(["setup"]).done();
    shown.prints(&["For the user belljar-test:", "user-namespaces", "control-group"]);
    let report = lab.belljar(["setup", "--json"]).done().json();
    assert_eq!(report["user"], "belljar-test");
    assert_eq!(report["changed"], false);
    let needed = report["steps"].as_array().unwrap().iter().any(|step| step["state"] == "needed");
    assert_eq!(shown.code(), i32::from(needed), "{shown}");
    // Asking for it makes no difference without root.
    let asked = lab.belljar(["setup", "--yes", "--json"]).done().json();
    assert_eq!(asked, report);
    lab.belljar(["setup", "--undo"]).done().expect(125).says(&["only root", "sudo "]);
}

#[test]
fn root_has_to_name_a_user_that_is_there_and_is_not_root() {
    if !as_root() {
        eprintln!("NOT CHECKED: as root");
        return;
    }
    let lab = Lab::new(Actor::Me);
    lab.belljar(["setup"]).done().expect(125).says(&["--user NAME"]);
    lab.belljar(["setup"]).env("SUDO_USER", "root").done().expect(125).says(&["--user NAME"]);
    lab.belljar(["setup", "--user", "no-such-user"]).done().expect(125).says(&["no-such-user"]);
    lab.belljar(["setup", "--user", "root"]).done().expect(125).says(&["needs no preparation"]);
    // Control: who called sudo is the user. Nothing is asked, since there is no terminal.
    let report = lab.belljar(["setup", "--json"]).env("SUDO_USER", "nobody").done().json();
    assert_eq!(report["user"], "nobody");
    assert_eq!(report["changed"], false);
}

/// An AppArmor that knows `userns`; the machine's own may be too old.
fn apparmor_parser() -> Option<PathBuf> {
    let given = std::env::var_os(env::TEST_APPARMOR_PARSER).map(PathBuf::from);
    if given.is_none() {
        let name = env::TEST_APPARMOR_PARSER;
        eprintln!(
            "NOT CHECKED: the AppArmor profile ({name} is not set; `cargo xtask test` sets it)"
        );
    }
    given
}

#[test]
fn the_apparmor_profile_is_accepted_by_its_parser() {
    let Some(parser) = apparmor_parser() else { return };
    let lab = Lab::new(Actor::Me);
    let profile = lab.belljar(["setup", "--print", "apparmor-profile"]).done();
    let profile = profile.expect(0).out();
    assert!(profile.contains(lab.exe.to_str().unwrap()), "{profile}");
    let compiled = |name: &str, text: &str| {
        let file = lab.path(name);
        fs::write(&file, text).unwrap();
        let mut parser = Command::new(&parser);
        parser
            .args(["--skip-kernel-load", "--skip-cache", "--quiet", "--stdout"])
            .arg(&file)
            .output()
            .unwrap()
    };
    let done = compiled("profile", &profile);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(!done.stdout.is_empty(), "nothing was compiled");
    // Controls: a rule that the parser does not know is refused, and `userns` makes a difference.
    assert!(!compiled("misspelt", &profile.replace("userns,", "usernss,")).status.success());
    let without = compiled("without", &profile.replace("  userns,\n", ""));
    assert!(without.status.success() && without.stdout != done.stdout);
}

#[test]
fn the_list_of_system_calls_is_the_one_that_the_jail_is_made_with() {
    let lab = Lab::new(Actor::Me);
    let printed = lab.belljar(["setup", "--print", "seccomp-profile"]).done();
    let profile: Value = serde_json::from_str(&printed.expect(0).out()).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let names = profile["syscalls"][0]["names"].as_array().unwrap();
    for wanted in ["clone3", "mount_setattr", "unshare", "openat2", "execve"] {
        assert!(names.iter().any(|name| name == wanted), "{wanted}");
    }
    for refused in
        ["bpf", "keyctl", "init_module", "kexec_load", "socket", "reboot", "io_uring_setup"]
    {
        assert!(!names.iter().any(|name| name == refused), "{refused}");
    }
    lab.belljar(["setup", "--print", "nonsense"]).done().expect(2);
}

/// Evaluated as engines do: 64 bits of the argument, of which the kernel reads 32.
#[test]
fn the_list_of_system_calls_lets_no_form_of_a_vsock_pass() {
    let lab = Lab::new(Actor::Me);
    let printed = lab.belljar(["setup", "--print", "seccomp-profile"]).done();
    let profile: Value = serde_json::from_str(&printed.expect(0).out()).unwrap();
    let rules: Vec<&Value> = profile["syscalls"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|rule| rule["names"].as_array().unwrap().iter().any(|name| name == "socket"))
        .collect();
    let allows = |family: u64| {
        rules.iter().any(|rule| {
            let [condition] = rule["args"].as_array().unwrap().as_slice() else {
                panic!("one condition: {rule}")
            };
            assert_eq!(condition["index"], 0, "{rule}");
            assert_eq!(condition["op"], "SCMP_CMP_MASKED_EQ", "{rule}");
            let number = |name: &str| condition[name].as_u64().unwrap();
            family & number("value") == number("valueTwo")
        })
    };
    for family in (0..48).filter(|family| *family != 40) {
        assert!(allows(family) && allows(family | 1 << 32), "{family}");
    }
    for family in [40, 40 | 1 << 32, 40 | 1 << 63, 40 | 0xffff_ffff << 32] {
        assert!(!allows(family), "{family:#x}");
    }
}
