//! Connection ids that name this server, for quinn behind Ballast (draft-ietf-quic-load-balancers-21).
//!
//! ```ignore
//! let ids = Ids::open("/run/ballast/quic/default/h3.json")?;
//! server_config.token_key(ids.token_key());
//! let endpoint = Endpoint::new(ids.endpoint_config(), Some(server_config), socket, runtime)?;
//! ```
//!
//! For single-pass and plain.

use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aes::cipher::{generic_array::GenericArray, BlockEncrypt, KeyInit};
use aes::Aes128;
use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{hkdf, hmac};

const FOLLOW_PERIOD: Duration = Duration::from_secs(1);
const BLOCK: usize = 16; // bytes, of AES

/// What the agent's file says.
#[derive(Clone)]
struct Form {
    config: u8,
    server: Vec<u8>,
    nonce: usize,          // bytes
    block: Option<Aes128>, // none: plain
    reset_key: Vec<u8>,
    token_key: Vec<u8>,
}

impl Form {
    fn read(path: &Path) -> Result<Form> {
        let wrong = |what: String| Error::new(ErrorKind::InvalidData, format!("read {}: {what}", path.display()));
        let said: serde_json::Value = serde_json::from_slice(&std::fs::read(path)?)?;
        let bytes = |key: &str| {
            let digits = said[key].as_str();
            digits.and_then(unhex).ok_or_else(|| wrong(format!("{key} is not in hexadecimal digits")))
        };
        let number = |key: &str| said[key].as_u64().ok_or_else(|| wrong(format!("{key} is no number")));
        let (config, server, nonce) = (number("config")?, bytes("server_id")?, number("nonce_length")?);
        if config > 6 || server.is_empty() || !(4..19).contains(&nonce) || server.len() + nonce as usize > 19 {
            return Err(wrong(format!("config {config}, {} bytes of server id, {nonce} of nonce", server.len())));
        }
        let block = match said["algorithm"].as_str() {
            Some("plain") => None,
            Some("single-pass") if server.len() + nonce as usize == BLOCK => {
                Some(Aes128::new_from_slice(&bytes("key")?).map_err(|_| wrong("key has not 16 bytes".into()))?)
            }
            _ => return Err(wrong(format!("algorithm {} is not for this program", said["algorithm"]))),
        };
        let (reset_key, token_key) = (bytes("stateless_reset_key")?, bytes("token_key")?);
        if reset_key.len() != 32 || token_key.len() != 32 {
            return Err(wrong("stateless_reset_key or token_key has not 32 bytes".into()));
        }
        Ok(Form { config: config as u8, server, nonce: nonce as usize, block, reset_key, token_key })
    }

    fn length(&self) -> usize {
        1 + self.server.len() + self.nonce
    }
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    if digits.len() % 2 != 0 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect()
}

/// Which file it is: the agent puts a new one in place of the old one.
fn stamp(path: &Path) -> Result<(u64, i64, i64)> {
    let found = std::fs::metadata(path)?;
    Ok((found.ino(), found.mtime(), found.mtime_nsec()))
}

/// Makes ids by the file that `ballast agent` keeps, and follows it. A file that is damaged or gone changes nothing.
#[derive(Clone)]
pub struct Ids {
    path: PathBuf,
    form: Form,
    stamp: (u64, i64, i64),
    looked: Instant,
    random: SystemRandom,
}

impl Ids {
    /// Reads the file. An error: it is not there or not right.
    pub fn open(path: impl Into<PathBuf>) -> Result<Ids> {
        let path = path.into();
        let stamp = stamp(&path)?; // before it is read: a file that comes between is read again
        Ok(Ids { form: Form::read(&path)?, stamp, path, looked: Instant::now(), random: SystemRandom::new() })
    }

    /// Ids and stateless resets of an endpoint.
    pub fn endpoint_config(&self) -> EndpointConfig {
        let ids = self.clone();
        let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &self.form.reset_key)));
        config.cid_generator(move || Box::new(ids.clone()));
        config
    }

    /// For `ServerConfig::token_key`: tokens hold at all servers of the service.
    pub fn token_key(&self) -> Arc<hkdf::Prk> {
        Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&self.form.token_key))
    }

    fn follow(&mut self) {
        if self.looked.elapsed() < FOLLOW_PERIOD {
            return;
        }
        self.looked = Instant::now();
        let Ok(stamp) = stamp(&self.path) else { return };
        if stamp == self.stamp {
            return;
        }
        // quinn asks for the length once, and has the other keys since it began: when these change, the program must start again.
        if let Ok(form) = Form::read(&self.path) {
            if form.length() == self.form.length() {
                (self.form, self.stamp) = (form, stamp);
            }
        }
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        self.follow();
        let form = &self.form;
        let mut id = vec![0; form.length()];
        id[0] = form.config << 5 | (id.len() - 1) as u8;
        id[1..=form.server.len()].copy_from_slice(&form.server);
        self.random.fill(&mut id[1 + form.server.len()..]).expect("the kernel has random bytes");
        if let Some(block) = &form.block {
            block.encrypt_block(GenericArray::from_mut_slice(&mut id[1..]));
        }
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        self.form.length()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aes::cipher::BlockDecrypt;

    /// Replaces the file as the agent does.
    fn put(path: &Path, config: u8, algorithm: &str, nonce: usize) {
        let (key, secret) = ("07".repeat(16), "01".repeat(32));
        let text = format!(
            r#"{{"config":{config},"algorithm":"{algorithm}","key":"{key}","server_id":"0009","nonce_length":{nonce},
            "stateless_reset_key":"{secret}","token_key":"{secret}"}}"#
        );
        put_text(path, &text);
    }

    fn put_text(path: &Path, text: &str) {
        let new = path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    /// The config and the server that the next id names, after a look at the file.
    fn next(ids: &mut Ids) -> (u8, Vec<u8>) {
        ids.looked = Instant::now().checked_sub(FOLLOW_PERIOD).unwrap();
        let mut id = ids.generate_cid().to_vec();
        assert_eq!((id.len(), id[0] & 0x1f), (17, 16));
        if let Some(block) = &ids.form.block {
            block.decrypt_block(GenericArray::from_mut_slice(&mut id[1..]));
        }
        (id[0] >> 5, id[1..3].to_vec())
    }

    #[test]
    fn ids_follow_the_file_and_a_damaged_one_changes_nothing() {
        let path = std::env::temp_dir().join(format!("ballast-ids-{}.json", std::process::id()));
        put(&path, 3, "single-pass", 14);
        let mut ids = Ids::open(&path).unwrap();
        assert_ne!(ids.generate_cid(), ids.generate_cid());
        assert_eq!(next(&mut ids), (3, vec![0, 9]));
        put(&path, 4, "plain", 14);
        assert_eq!(next(&mut ids), (4, vec![0, 9]));
        for damaged in ["", "{", "[]", r#"{"config":5}"#] {
            put_text(&path, damaged);
            assert!(Ids::open(&path).is_err(), "{damaged}");
            assert_eq!(next(&mut ids), (4, vec![0, 9]));
        }
        for (config, algorithm, nonce) in [(7, "plain", 14), (5, "plain", 5), (5, "plain", 18), (5, "four-pass", 14), (5, "single-pass", 13)] {
            put(&path, config, algorithm, nonce);
            assert_eq!(next(&mut ids), (4, vec![0, 9]), "{config} {algorithm} {nonce}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(next(&mut ids), (4, vec![0, 9]));
        put(&path, 6, "single-pass", 14);
        assert_eq!(next(&mut ids), (6, vec![0, 9]));
        std::fs::remove_file(&path).unwrap();
    }
}
