//! What stands for `ssh` in a test: a program of that name that does here what it is told to do there,
//! or the real one, with a server of this test's own.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use belljar_testkit::{Lab, PrivateDocker, until};

/// Where the engine listens on its own machine.
pub(crate) fn address(docker: &PrivateDocker) -> String {
    format!("unix://{}", docker.access().socket().display())
}

pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let places = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    places.iter().map(|place| Path::new(place).join(program)).find(|path| path.exists())
}

/// Written to the lab's directory `ssh`, which then goes first on the PATH.
pub(crate) fn path_with(lab: &Lab, script: &str) -> String {
    lab.make_program("ssh/ssh", script);
    format!("{}:/usr/local/bin:/usr/bin:/bin", lab.path("ssh").display())
}

/// Notes what it was asked, and does what follows the host's name, with a variable of the other machine's.
pub(crate) fn fake(lab: &Lab, variable: &str, value: &str) -> String {
    let asked = lab.make_file("asked", "");
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> {}\nwhile [ \"$1\" != -- ]; do shift; done\nshift 2\n\
         {variable}={value} exec \"$@\"\n",
        asked.display(),
    );
    path_with(lab, &script)
}

/// `sshd` on the loopback interface, with keys that were made for it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) path: String,
    key: PathBuf,
    process: Child,
}

impl Server {
    pub(crate) fn start(lab: &Lab, docker: &PrivateDocker) -> Option<Self> {
        let Some(sshd) = which("sshd") else {
            eprintln!("NOT CHECKED: over a real ssh: sshd is not installed");
            return None;
        };
        let at = |name: &str| lab.path("sshd").join(name);
        lab.make_directory("sshd");
        for name in ["host", "user"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(at(name))
                .status();
            assert!(made.unwrap().success());
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nLogLevel ERROR\n\
             SetEnv DOCKER_HOST={} PATH=/usr/local/bin:/usr/bin:/bin\n",
            at("host").display(),
            at("user.pub").display(),
            address(docker),
        );
        fs::write(at("sshd_config"), settings).unwrap();
        let host = fs::read_to_string(at("host.pub")).unwrap();
        fs::write(at("known"), format!("[127.0.0.1]:{port} {host}")).unwrap();
        let settings = format!(
            "UserKnownHostsFile {}\nGlobalKnownHostsFile /dev/null\nIdentityFile {}\nIdentitiesOnly yes\n",
            at("known").display(),
            at("user").display()
        );
        fs::write(at("config"), settings).unwrap();
        // ssh takes its settings from the account's home, whatever HOME says.
        let real = which("ssh").unwrap();
        let script =
            format!("#!/bin/sh\nexec {} -F {} \"$@\"\n", real.display(), at("config").display());
        let path = path_with(lab, &script);
        fs::create_dir_all("/run/sshd").unwrap();
        let process = Command::new(sshd)
            .args(["-D", "-e", "-f"])
            .arg(at("sshd_config"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { port, path, key: at("user"), process };
        let listens =
            until(Duration::from_secs(20), || TcpStream::connect(("127.0.0.1", port)).is_ok());
        assert!(listens, "sshd does not listen");
        Some(server)
    }

    /// Nobody is let in any more.
    pub(crate) fn lose_key(&self) {
        fs::remove_file(&self.key).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it has no connections left
        let _ = self.process.wait();
    }
}
