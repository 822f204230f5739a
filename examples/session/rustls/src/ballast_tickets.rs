//! Session tickets that name this server, for rustls behind Ballast.
//!
//! ```ignore
//! server_config.ticketer = Arc::new(Tickets::open("/run/ballast/tickets/default/web.json")?);
//! ```
//!
//! A ticket is a name, which load balancers read, and the session, by AES-256-GCM under a key for that name.

use std::fmt;
use std::hash::Hasher;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey, AES_256_GCM, NONCE_LEN};
use ring::hkdf;
use ring::rand::{SecureRandom, SystemRandom};
use rustls::server::ProducesTickets;
use siphasher::sip::SipHasher24;

const FOLLOW_PERIOD: Duration = Duration::from_secs(1);
const LIFETIME_SECONDS: u32 = 24 * 3600;
const NAME: usize = 16; // bytes

fn siphash(key: &[u8], message: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(key.try_into().expect("half of a key has 16 bytes"));
    hasher.write(message);
    hasher.finish()
}

/// The keys of an epoch.
struct Epoch {
    names: Vec<u8>, // of tags, and of what hides ids
    sessions: Vec<hkdf::Prk>, // that tickets of such a name may be by; they are made by the first
}

impl Epoch {
    fn tag(&self, nonce: &[u8], id: u16) -> [u8; 6] {
        let message = [nonce, &id.to_be_bytes()].concat();
        siphash(&self.names[..16], &message).to_be_bytes()[..6].try_into().expect("6 of 8 bytes")
    }

    fn pad(&self, nonce_and_tag: &[u8]) -> u16 {
        siphash(&self.names[16..], nonce_and_tag) as u16
    }

    /// nonce | tag | hidden id
    fn seal(&self, nonce: [u8; 8], id: u16) -> [u8; NAME] {
        let mut name = [0; NAME];
        name[..8].copy_from_slice(&nonce);
        name[8..14].copy_from_slice(&self.tag(&nonce, id));
        let hidden = id ^ self.pad(&name[..14]);
        name[14..].copy_from_slice(&hidden.to_be_bytes());
        name
    }

    fn opens(&self, name: &[u8]) -> bool {
        let id = u16::from_be_bytes([name[14], name[15]]) ^ self.pad(&name[..14]);
        id != 0 && self.tag(&name[..8], id) == name[8..14]
    }

}

fn key(sessions: &hkdf::Prk, name: &[u8]) -> Option<LessSafeKey> {
    let info = [b"ballast rustls ticket", name];
    Some(LessSafeKey::new(UnboundKey::from(sessions.expand(&info, &AES_256_GCM).ok()?)))
}

/// What the agent's file says.
struct Keys {
    server: u16,
    epochs: Vec<Epoch>, // tickets are made by the first, and read by all
}

impl Keys {
    fn read(path: &Path) -> Result<Keys> {
        let wrong = |what: String| Error::new(ErrorKind::InvalidData, format!("read {}: {what}", path.display()));
        let said: serde_json::Value = serde_json::from_slice(&std::fs::read(path)?)?;
        let bytes = |key: &serde_json::Value| key.as_str().and_then(unhex).filter(|bytes| bytes.len() == 32);
        let listed: Option<Vec<_>> = said["ticket_keys"].as_array().map_or(Some(vec![]), |keys| keys.iter().map(bytes).collect());
        let listed = listed.ok_or_else(|| wrong("ticket_keys have not 32 bytes each".into()))?;
        let epoch = |names: &str, sessions: &str| match (bytes(&said[names]), bytes(&said[sessions])) {
            (Some(names), Some(first)) => {
                let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]);
                let others = listed.iter().filter(|key| **key != first);
                Ok(Epoch { names, sessions: std::iter::once(&first).chain(others).map(|key| salt.extract(key)).collect() })
            }
            _ => Err(wrong(format!("{names} and {sessions} have not 32 bytes"))),
        };
        let mut epochs = vec![epoch("id_key", "ticket_key")?];
        if ["id_key_before", "ticket_key_before"].iter().any(|key| !said[key].as_str().unwrap_or("").is_empty()) {
            epochs.push(epoch("id_key_before", "ticket_key_before")?);
        }
        match said["server_id"].as_u64().and_then(|id| u16::try_from(id).ok()) {
            None | Some(0) => Err(wrong("server_id is no number from 1 to 65535".into())),
            Some(server) => Ok(Keys { server, epochs }),
        }
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

struct Followed {
    keys: Arc<Keys>,
    stamp: (u64, i64, i64),
    looked: Instant,
}

/// Makes and reads tickets by the file that `ballast agent` keeps, and follows it. A file that is damaged or gone changes nothing.
pub struct Tickets {
    path: PathBuf,
    followed: Mutex<Followed>,
    random: SystemRandom,
}

impl Tickets {
    /// Reads the file. An error: it is not there or not right.
    pub fn open(path: impl Into<PathBuf>) -> Result<Tickets> {
        let path = path.into();
        let stamp = stamp(&path)?; // before it is read: a file that comes between is read again
        let keys = Arc::new(Keys::read(&path)?);
        Ok(Tickets { path, followed: Mutex::new(Followed { keys, stamp, looked: Instant::now() }), random: SystemRandom::new() })
    }

    fn keys(&self) -> Arc<Keys> {
        let mut followed = self.followed.lock().expect("nobody panics with it");
        if followed.looked.elapsed() >= FOLLOW_PERIOD {
            followed.looked = Instant::now();
            match stamp(&self.path) {
                Ok(stamp) if stamp != followed.stamp => {
                    if let Ok(keys) = Keys::read(&self.path) {
                        (followed.keys, followed.stamp) = (Arc::new(keys), stamp);
                    }
                }
                _ => {}
            }
        }
        followed.keys.clone()
    }

    fn draw<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.random.fill(&mut bytes).ok()?;
        Some(bytes)
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME_SECONDS
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        let (keys, nonce) = (self.keys(), self.draw::<NONCE_LEN>()?);
        let name = keys.epochs[0].seal(self.draw()?, keys.server);
        let mut sealed = session.to_vec();
        key(&keys.epochs[0].sessions[0], &name)?.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(name), &mut sealed).ok()?;
        Some([&name[..], &nonce, &sealed].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let keys = self.keys();
        let epoch = keys.epochs.iter().find(|epoch| epoch.opens(name))?;
        epoch.sessions.iter().find_map(|sessions| {
            let mut session = sealed.to_vec();
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let length = key(sessions, name)?.open_in_place(nonce, Aad::from(name), &mut session).ok()?.len();
            session.truncate(length);
            Some(session)
        })
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session tickets by {}", self.path.display()) // and no keys
    }
}
