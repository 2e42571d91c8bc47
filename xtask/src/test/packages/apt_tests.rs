//! With the real apt, on a machine that is made up: one package is installed, and one of those that the
//! archive offers would push it out.

use super::super::plan::{Plan, plan};
use super::*;
use crate::host;

const ARCHIVE: &str = "\
Package: emulator
Version: 7.2
Architecture: all
Breaks: disk-tools (>= 8)
Depends: firmware
Filename: ./emulator.deb
Size: 1
SHA256: 0000000000000000000000000000000000000000000000000000000000000000

Package: firmware
Version: 1.0-1
Architecture: all
Filename: ./firmware.deb
Size: 1
SHA256: 0000000000000000000000000000000000000000000000000000000000000001

Package: client
Version: 3
Architecture: all
Recommends: firmware
Filename: ./client.deb
Size: 1
SHA256: 0000000000000000000000000000000000000000000000000000000000000002
";

const INSTALLED: &str = "\
Package: disk-tools
Status: install ok installed
Version: 10.0
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: installed by whoever uses this machine

";

/// An apt that knows this archive and this machine, and nothing of the real one.
fn made_up(directory: &Path) -> Apt {
    for name in ["repository", "state/lists/partial", "cache/archives/partial", "etc"] {
        fs::create_dir_all(directory.join(name)).unwrap();
    }
    let place = directory.display();
    fs::write(directory.join("repository/Packages"), ARCHIVE).unwrap();
    fs::write(directory.join("status"), INSTALLED).unwrap();
    let source = format!("deb [trusted=yes] file:{place}/repository ./\n");
    fs::write(directory.join("etc/sources.list"), source).unwrap();
    let options = vec![
        format!("Dir::Etc={place}/etc"),
        format!("Dir::State={place}/state"),
        format!("Dir::State::status={place}/status"),
        format!("Dir::Cache={place}/cache"),
        "APT::Sandbox::User=root".to_owned(),
        // Hooks of the real machine's configuration.
        "APT::Update::Post-Invoke-Success::=true".to_owned(),
    ];
    let apt = Apt { options };
    command::check(apt.get().args(["-qq", "update"]), LIMIT).unwrap();
    apt
}

#[test]
fn a_package_that_would_push_another_out_is_unpacked_and_the_others_are_installed() {
    if !host::is_debian() {
        eprintln!("NOT CHECKED: there is no apt here");
        return;
    }
    let scratch = Scratch::new("apt-test").unwrap();
    let apt = made_up(scratch.path());

    // Control: without the rule, apt would remove what is there.
    let together = apt.simulate(&["client", "emulator"]).unwrap();
    assert_eq!(together.removes, ["disk-tools"]);

    let found = plan(&["client", "emulator"], |packages| apt.simulate(packages)).unwrap();
    let Plan { install, unpack_only } = found;
    assert_eq!(install, ["client"]);
    assert_eq!(unpack_only.len(), 1);
    assert_eq!(unpack_only[0].package, "emulator");
    assert_eq!(unpack_only[0].would_remove, ["disk-tools"]);
    assert_eq!(unpack_only[0].archives, ["firmware=1.0-1", "emulator=7.2"]);
    // No recommended package comes along.
    assert_eq!(apt.simulate(&["client"]).unwrap().installs, ["client=3"]);
    assert!(apt.simulate(&["no-such-package"]).unwrap_err().contains("no-such-package"));
}

#[test]
fn an_installation_that_removes_is_refused_by_apt_itself() {
    if !host::is_debian() {
        eprintln!("NOT CHECKED: there is no apt here");
        return;
    }
    let scratch = Scratch::new("apt-remove-test").unwrap();
    let mut apt = made_up(scratch.path());
    apt.options.push("APT::Get::Simulate=true".to_owned());
    apt.install(&["client"]).unwrap();
    assert!(apt.install(&["emulator"]).is_err(), "disk-tools would have been removed");
}

#[test]
fn the_lines_of_a_simulation_are_read() {
    let text = "Remv qemu-utils [1:10.0.2]\nInst seabios (1.16.2-1 Debian:12.15/oldstable [all])\n\
                Inst libc6 [2.36-9] (2.36-10 Debian:12 [amd64]) []\nConf seabios (1.16.2-1 x [all])\n";
    let found = read_simulation(text);
    assert_eq!(found.removes, ["qemu-utils"]);
    assert_eq!(found.installs, ["seabios=1.16.2-1", "libc6=2.36-10"]);
}
