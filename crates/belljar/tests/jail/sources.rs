//! Sources that a person seldom means to give away are refused, with the reason and the way to mean it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use belljar_testkit::{Done, Lab, as_root, each_user};

fn mounted(lab: &Lab, source: &Path, options: &[&str], mode: &str) -> Done {
    let mount = format!("{}:/given:{mode}", source.display());
    let words: Vec<&str> =
        options.iter().chain(&["-v", &mount, "--", "ls", "/given"]).copied().collect();
    lab.run(words).done()
}

/// Refused in words, with nothing made; given where the operator names it.
fn refused_but_can_be_allowed(lab: &Lab, source: &Path, mode: &str, why: &str) {
    let shown = source.display().to_string();
    let before = lab.runs();
    let done = mounted(lab, source, &[], mode);
    done.expect(125).says(&[&shown, why, &format!("--allow-source {shown}")]);
    assert_eq!(lab.runs(), before, "a refused run left its directory");
    assert_eq!(lab.live(), Vec::<String>::new());
    mounted(lab, source, &["--allow-source", &shown], mode).expect(0);
    // Another path's permission is not this one's.
    mounted(lab, source, &["--allow-source", "/somewhere/else"], mode).expect(125);
}

fn always_refused(lab: &Lab, source: &Path, why: &[&str]) {
    let shown = source.display().to_string();
    for mode in ["ro", "rw"] {
        mounted(lab, source, &[], mode).expect(125).says(why);
        let done = mounted(lab, source, &["--allow-source", &shown], mode);
        done.expect(125);
        assert!(!done.err().contains("--allow-source"), "it says how, and then does not: {done}");
    }
    lab.assert_nothing_was_made();
}

#[test]
fn a_missing_source_is_named() {
    each_user(|lab| {
        let done = mounted(lab, &lab.path("no-such-thing"), &[], "ro");
        done.expect(125).says(&["no-such-thing", "not"]);
        let done = lab.run(["--workspace", "/no/such/workspace", "--", "true"]).done();
        done.expect(125).says(&["/no/such/workspace"]);
        lab.assert_nothing_was_made();
    });
}

#[test]
fn the_whole_system_is_never_given() {
    each_user(|lab| always_refused(lab, Path::new("/"), &["/ is, contains"]));
}

#[test]
fn a_home_directory_has_to_be_meant() {
    each_user(|lab| {
        lab.make_file("person/file", "x");
        refused_but_can_be_allowed(lab, &lab.person(), "ro", "home directory");
        // As the workspace too, which is the easiest mistake to make: `cd; belljar run`.
        let done = lab.run(["--", "true"]).from(lab.person()).done();
        done.expect(125).says(&["home directory", "--allow-source"]);
        // The control: a directory in it is what people work on.
        let project = lab.make_directory("person/project");
        lab.run(["--", "true"]).from(project).done().expect(0);
    });
}

#[test]
fn places_of_credentials_have_to_be_meant() {
    each_user(|lab| {
        for name in
            [".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config/gh", ".config/gcloud"]
        {
            lab.make_file(Path::new("person").join(name).join("file"), "x");
            refused_but_can_be_allowed(lab, &lab.person().join(name), "ro", "credentials");
        }
        // A file in one of them, and below it.
        let key = lab.person().join(".ssh/file");
        refused_but_can_be_allowed(lab, &key, "ro", "credentials");
        for name in [".env", ".netrc", ".npmrc", ".pypirc"] {
            let file = lab.make_file(Path::new("person").join(name), "x");
            refused_but_can_be_allowed(lab, &file, "ro", "credentials");
        }
        // The control: a name that only looks like one.
        let plain = lab.make_directory("person/ssh");
        mounted(lab, &plain, &[], "ro").expect(0);
    });
}

/// The real name counts, not the one that was given.
#[test]
fn a_link_does_not_hide_what_it_leads_to() {
    each_user(|lab| {
        lab.make_file("person/.ssh/id", "key");
        let link = lab.path("harmless");
        std::os::unix::fs::symlink(lab.person().join(".ssh"), &link).unwrap();
        mounted(lab, &link, &[], "ro").expect(125).says(&["credentials"]);
    });
}

#[test]
fn a_socket_has_to_be_meant() {
    each_user(|lab| {
        let path = lab.path("docker.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let done = mounted(lab, &path, &[], "ro");
        done.expect(125).says(&["socket", "--allow-source"]);
        lab.assert_nothing_was_made();
        mounted(lab, &path, &["--allow-source", path.to_str().unwrap()], "ro").expect(0);
    });
}

#[test]
fn devices_and_pipes_are_no_sources() {
    each_user(|lab| {
        always_refused(
            lab,
            Path::new("/dev/null"),
            &["/dev/null", "neither a file nor a directory"],
        );
        let fifo = lab.path("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        always_refused(lab, &fifo, &["neither a file nor a directory"]);
    });
}

#[test]
fn a_file_with_two_names_is_not_made_writable_by_accident() {
    each_user(|lab| {
        let file = lab.make_file("data/file", "x");
        mounted(lab, &file, &[], "rw").expect(0);
        fs::hard_link(&file, lab.path("data/other-name")).unwrap();
        refused_but_can_be_allowed(lab, &file, "rw", "2 hard links");
        // Read-only, nothing can change anywhere.
        mounted(lab, &file, &[], "ro").expect(0);
    });
}

#[test]
fn belljars_own_directories_are_never_given() {
    each_user(|lab| {
        // The home itself, what lies in it, and what contains it.
        lab.make_directory("home/runs");
        lab.run(["--", "true"]).done().expect(0); // makes it a home
        for run in lab.runs() {
            fs::remove_dir_all(lab.home().join("runs").join(run)).unwrap();
        }
        always_refused(lab, &lab.home(), &["Belljar's own directory"]);
        always_refused(lab, &lab.home().join("runs"), &["Belljar's own directory"]);
        always_refused(lab, &lab.path("."), &["Belljar's own directory"]);
        let done = lab.run(["--workspace", lab.path("").to_str().unwrap(), "--", "true"]).done();
        done.expect(125).says(&["Belljar's own directory"]);
        // By another name.
        let link = lab.path("innocent");
        std::os::unix::fs::symlink(lab.home(), &link).unwrap();
        always_refused(lab, &link, &["Belljar's own directory"]);
        let config = lab.make_directory("person/.config/belljar");
        always_refused(lab, &config, &["Belljar's own directory"]);
        // The control: what lies beside it.
        let beside = lab.make_directory("beside");
        mounted(lab, &beside, &[], "ro").expect(0);
    });
}

#[test]
fn a_tool_shows_its_programs_and_not_its_credentials() {
    each_user(|lab| {
        // A prefix appears at its own path, so it lies where nothing else of the sandbox does.
        let place = if as_root() { Path::new("/").to_owned() } else { lab.work() };
        let prefix = tempfile::Builder::new().prefix("belljar-tool-").tempdir_in(place).unwrap();
        fs::set_permissions(prefix.path(), fs::Permissions::from_mode(0o755)).unwrap();
        lab.make_program(prefix.path().join("bin/greet"), "#!/bin/sh\necho hello from the tool\n");
        lab.make_file(prefix.path().join("credentials.toml"), "token");
        let tool = prefix.path().to_str().unwrap();
        let script = format!(
            "greet; ls {tool}; cat {tool}/credentials.toml; touch {tool}/new && echo wrote"
        );
        let words = ["--workspace", "none", "--tool", tool, "--", "sh", "-c", &script];
        let done = lab.run(words).done();
        assert!(done.out().starts_with("hello from the tool\nbin\n"), "{done}");
        assert!(!done.out().contains("token") && !done.out().contains("wrote"), "{done}");
    });
}
