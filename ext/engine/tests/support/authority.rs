//! A certificate authority of the tests' own, by the openssl command.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::run;

pub struct Authority {
    folder: PathBuf,
}

/// From before the beginning of the tests to long after, or already over.
#[derive(Clone, Copy)]
pub enum Validity {
    Now,
    Over,
}

impl Authority {
    pub fn new(parent: &Path, name: &str) -> Self {
        let folder = parent.join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("index"), "").unwrap();
        fs::write(
            folder.join("config"),
            "[ca]\ndefault_ca = it\n[it]\ndatabase = index\nserial = serial\nnew_certs_dir = .\ncertificate = root.crt\n\
             private_key = root.key\ndefault_md = sha256\npolicy = policy\nunique_subject = no\n\
             [policy]\ncommonName = supplied\n",
        )
        .unwrap();
        let authority = Self { folder };
        authority.key("root.key");
        let subject = format!("/CN={name}");
        authority.openssl(&["req", "-x509", "-key", "root.key", "-out", "root.crt", "-days", "9", "-subj", &subject]);
        authority
    }

    pub fn root(&self) -> PathBuf {
        self.folder.join("root.crt")
    }

    /// Makes NAME.crt and NAME.key; `names` as openssl writes subjectAltName, empty for none.
    pub fn issue(&self, name: &str, common_name: &str, names: &str, validity: Validity) -> (PathBuf, PathBuf) {
        let (key, request, cert) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.crt"));
        self.key(&key);
        self.openssl(&["req", "-new", "-key", &key, "-out", &request, "-subj", &format!("/CN={common_name}")]);
        let names = if names.is_empty() { String::new() } else { format!("subjectAltName = {names}\n") };
        fs::write(self.folder.join("extensions"), format!("basicConstraints = CA:FALSE\n{names}")).unwrap();
        let (start, end) = match validity {
            Validity::Now => ("20200101000000Z", "20991231000000Z"),
            Validity::Over => ("20200101000000Z", "20200102000000Z"),
        };
        self.openssl(&[
            "ca",
            "-batch",
            "-notext",
            "-config",
            "config",
            "-rand_serial",
            "-extfile",
            "extensions",
            "-startdate",
            start,
            "-enddate",
            end,
            "-in",
            &request,
            "-out",
            &cert,
        ]);
        (self.folder.join(cert), self.folder.join(key))
    }

    /// A self-signed one, with an RSA key, whose signature is RSA-PSS.
    pub fn issue_by_pss(&self, name: &str, common_name: &str) -> (PathBuf, PathBuf) {
        let (key, cert) = (format!("{name}.key"), format!("{name}.crt"));
        let subject = format!("/CN={common_name}");
        self.openssl(&[
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            &key,
            "-out",
            &cert,
            "-days",
            "9",
            "-subj",
            &subject,
            "-sigopt",
            "rsa_padding_mode:pss",
            "-sigopt",
            "rsa_pss_saltlen:-1",
        ]);
        (self.folder.join(cert), self.folder.join(key))
    }

    fn key(&self, file: &str) {
        self.openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", file]);
        fs::set_permissions(self.folder.join(file), fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn openssl(&self, arguments: &[&str]) {
        run(Command::new("openssl").current_dir(&self.folder).args(arguments));
    }
}
