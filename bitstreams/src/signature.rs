//! Signatures of images: ed25519, in minisign's files.
//!
//! A signature lies beside its file, as `FILE.minisig`, and `minisign` itself makes and checks the
//! same ones. Those of its old format, without a hash, are not taken.

use std::io::Cursor;

use ct_codecs::{Base64, Decoder as _};

use crate::digest::Sha256;

/// A key that signatures are checked by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey(minisign_verify::PublicKey);

impl PublicKey {
    /// Reads the text of a public key's file.
    ///
    /// # Errors
    /// The fault, and the expected value.
    pub fn parse(text: &str) -> Result<Self, String> {
        let key = minisign_verify::PublicKey::decode(text);
        key.map(Self).map_err(|_| "it is no public key; minisign -G makes a pair".to_owned())
    }
}

/// A signature.
pub struct Signature(minisign_verify::Signature);

impl Signature {
    /// Reads the text of a signature's file.
    ///
    /// # Errors
    /// The fault, and the expected value.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = "it is no signature of minisign's; sign the image again";
        minisign_verify::Signature::decode(text).map(Self).map_err(|_| wrong.to_owned())
    }

    /// The comment of its maker, which only [`Signature::check`] proves.
    #[must_use]
    pub fn comment(&self) -> &str {
        self.0.trusted_comment()
    }

    /// The key of these by which the signature of these bytes was made; `None` if there is none.
    #[must_use]
    pub fn check<'a, T>(&self, bytes: &[u8], keys: &'a [(T, PublicKey)]) -> Option<&'a T> {
        let good = |key: &PublicKey| key.0.verify(bytes, &self.0, false).is_ok();
        keys.iter().find(|(_, key)| good(key)).map(|(name, _)| name)
    }
}

/// Signs bytes with the secret key of a file's text, and returns the text of the signature's file.
///
/// The password of a key that has one is asked for on the terminal.
///
/// # Errors
/// When that is no secret key, or the password is not the key's.
pub fn sign(bytes: &[u8], secret_key: &str) -> Result<String, String> {
    let key = open(secret_key)
        .map_err(|error| format!("it is no secret key that can be used: {error}"))?;
    let comment = format!("sha256:{}", Sha256::of(bytes));
    // With the public key, so that a secret key whose halves do not fit is seen.
    let made = minisign::PublicKey::from_secret_key(&key).and_then(|public| {
        minisign::sign(Some(&public), &key, Cursor::new(bytes), Some(&comment), None)
    });
    made.map(minisign::SignatureBox::into_string).map_err(|error| error.to_string())
}

/// The secret key of a file's text.
fn open(text: &str) -> Result<minisign::SecretKey, minisign::PError> {
    let boxed = minisign::SecretKeyBox::from_string(text)?;
    match boxed.clone().into_unencrypted_secret_key() {
        // It has a password, or is none.
        Err(error) if matches!(error.kind(), minisign::ErrorKind::Io) => {
            boxed.into_secret_key(None)
        }
        // The program minisign writes no checksum where there is no password, and the crate misses it.
        Err(error) => without_checksum(text).ok_or(error),
        Ok(key) => Ok(key),
    }
}

/// A secret key without a password whose checksum was left 0.
fn without_checksum(text: &str) -> Option<minisign::SecretKey> {
    let bytes = Base64::decode_to_vec(text.lines().nth(1)?, None).ok()?;
    let checksum = bytes.last_chunk::<32>()?;
    let key = minisign::SecretKey::from_bytes(&bytes).ok()?;
    (checksum == &[0; 32] && !key.is_encrypted()).then_some(key)
}

#[cfg(test)]
mod tests {
    use ct_codecs::Encoder as _;

    use super::*;

    fn pair() -> (String, PublicKey) {
        let pair = minisign::KeyPair::generate_unencrypted_keypair().unwrap();
        let secret = pair.sk.to_box(None).unwrap().into_string();
        (secret, PublicKey::parse(&pair.pk.to_box().unwrap().into_string()).unwrap())
    }

    #[test]
    fn a_signature_is_good_by_its_own_key_for_its_own_bytes_only() {
        let ((secret, public), (_, other)) = (pair(), pair());
        let text = sign(b"an image", &secret).unwrap();
        let signature = Signature::parse(&text).unwrap();
        let keys = [("other", other.clone()), ("own", public)];
        assert_eq!(signature.check(b"an image", &keys), Some(&"own"));
        assert_eq!(signature.check(b"an imagf", &keys), None);
        assert_eq!(signature.check(b"an image", &[("other", other)]), None);
        assert_eq!(signature.comment(), format!("sha256:{}", Sha256::of(b"an image")));
        // A comment that somebody else wrote.
        let forged = text.replace("sha256:", "sha256=");
        assert_eq!(Signature::parse(&forged).unwrap().check(b"an image", &keys), None);
    }

    #[test]
    fn a_key_of_the_programs_without_a_checksum_is_taken_if_its_halves_fit() {
        let pair = minisign::KeyPair::generate_unencrypted_keypair().unwrap();
        let text = |bytes: &[u8]| {
            format!("untrusted comment: x\n{}\n", Base64::encode_to_string(bytes).unwrap())
        };
        let mut bytes = pair.sk.to_bytes();
        let checksum = bytes.len() - 32;
        bytes[checksum..].fill(0);
        let signature = Signature::parse(&sign(b"x", &text(&bytes)).unwrap()).unwrap();
        let public = PublicKey::parse(&pair.pk.to_box().unwrap().into_string()).unwrap();
        assert_eq!(signature.check(b"x", &[((), public)]), Some(&()));
        let mut spoilt = bytes.clone();
        spoilt[70] ^= 1;
        assert!(sign(b"x", &text(&spoilt)).is_err());
        bytes[checksum] = 1;
        assert!(sign(b"x", &text(&bytes)).unwrap_err().contains("no secret key"));
    }

    #[test]
    fn what_is_no_key_and_no_signature_is_refused() {
        let (secret, _) = pair();
        let good = sign(b"x", &secret).unwrap();
        let mut lines: Vec<&str> = good.lines().collect();
        // A global signature that is cut short.
        lines[3] = "AAAA";
        for text in ["", "\n\n\n\n", "untrusted comment: x\nAAAA\n", &secret, &lines.join("\n")] {
            assert!(Signature::parse(text).is_err(), "{text:?}");
            assert!(PublicKey::parse(text).is_err(), "{text:?}");
        }
        assert!(sign(b"x", "untrusted comment: x\nAAAA\n").unwrap_err().contains("no secret key"));
        let cut = &secret[..secret.len() - 9];
        assert!(sign(b"x", cut).unwrap_err().contains("no secret key"));
    }
}
