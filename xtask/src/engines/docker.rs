//! The Docker engine, with gVisor as a second runtime where it is installed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use belljar::spec::env;

use super::daemon::Daemon;
use super::image::{Images, debian_archive};
use super::{Variables, api, endpoint};
use crate::host;
use belljar_testkit::private_docker::{BUSYBOX_IMAGE, DockerFiles, RUNSC};

/// Debian's minimal system, as debootstrap makes it.
const REAL_DEBIAN_IMAGE: &str = "belljar-test/debian:1";

pub(super) struct Docker {
    pub(super) socket: PathBuf,
}

impl Docker {
    /// Its processes go into `daemons`, also where it fails.
    pub(super) fn start(
        directory: &Path,
        images: &Images,
        daemons: &mut Vec<Daemon>,
    ) -> Result<Self> {
        fs::create_dir(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let runsc = host::find_program(RUNSC);
        let files =
            DockerFiles::write(directory, runsc.as_deref()).context("cannot write its settings")?;
        let mut containerd =
            Daemon::start(&mut files.containerd(), directory.join("containerd.log"))?;
        let listens = containerd.wait_until_it_listens(&files.containerd_socket());
        daemons.push(containerd);
        listens.context("containerd")?;
        let mut dockerd = Daemon::start(&mut files.dockerd(), directory.join("dockerd.log"))?;
        let answers = dockerd.wait_until_it_answers(&files.socket());
        daemons.push(dockerd);
        answers.context("dockerd")?;
        let socket = files.socket();
        images.import(&socket, "")?;
        let archive = debian_archive().context("an image of Debian")?;
        let bytes = fs::read(&archive).context("cannot read the image of Debian")?;
        api::import(&socket, &bytes, REAL_DEBIAN_IMAGE)?;
        Ok(Self { socket })
    }

    pub(super) fn variables(&self, images: &Images) -> Result<Variables> {
        api::try_out(&self.socket, BUSYBOX_IMAGE, None)?;
        Ok(vec![
            (env::TEST_DOCKER.to_owned(), endpoint(&self.socket)),
            (env::TEST_IMAGE_DOCKER.to_owned(), BUSYBOX_IMAGE.to_owned()),
            (env::TEST_IMAGE_ARCHIVE.to_owned(), images.busybox.display().to_string()),
            (env::TEST_IMAGE_DEBIAN.to_owned(), REAL_DEBIAN_IMAGE.to_owned()),
        ])
    }

    /// The same engine, the other runtime.
    pub(super) fn runsc_variables(&self) -> Result<Variables> {
        api::try_out(&self.socket, BUSYBOX_IMAGE, Some(RUNSC))?;
        Ok(vec![(env::TEST_RUNSC.to_owned(), RUNSC.to_owned())])
    }
}
