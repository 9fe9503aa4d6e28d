//! Signs calls as the Standard Webhooks specification has it, so that a receiver knows who calls.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use ring::hmac;
use roundelay_model::clock::Time;

static ID: HeaderName = HeaderName::from_static("webhook-id");
static TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
static SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// What secrets begin with.
const PREFIX: &str = "whsec_";
/// Bytes of a secret: fewer could be guessed, and more add nothing.
const SIZES: std::ops::RangeInclusive<usize> = 24..=64;
/// With and without `=` at the end: people copy secrets from where there are none.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// What is signed is held together by full stops, so the id has none.
const NOT_IN_ID: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// Signs with all of its secrets, so that receivers can change from one to the next.
#[derive(Debug)]
pub struct Signer(Vec<hmac::Key>);

impl Signer {
    /// Signs with `secrets`; without any, not at all.
    ///
    /// # Errors
    /// Says which secret is none, without showing it.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let keys = secrets.into_iter().enumerate().map(|(n, secret)| {
            let bytes = secret.strip_prefix(PREFIX).and_then(|text| BASE64.decode(text).ok());
            let bytes = bytes.filter(|bytes| SIZES.contains(&bytes.len())).ok_or_else(|| {
                format!(
                    "secret {} is not `{PREFIX}` and {} to {} random bytes in base64; make one with: echo \
                     {PREFIX}$(head -c 32 /dev/urandom | base64)",
                    n + 1,
                    SIZES.start(),
                    SIZES.end()
                )
            })?;
            Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
        });
        keys.collect::<Result<_, String>>().map(Self)
    }

    /// Whether the headers that it sets are its own.
    pub fn sets(&self, header: &HeaderName) -> bool {
        !self.0.is_empty() && [&ID, &TIMESTAMP, &SIGNATURE].contains(&header)
    }

    /// Signs `body`, which is sent at `now` for the job `id`.
    pub fn sign(&self, headers: &mut HeaderMap, id: &str, now: Time, body: &[u8]) {
        if self.0.is_empty() {
            return;
        }
        let id = utf8_percent_encode(id, NOT_IN_ID).to_string();
        let timestamp = now.as_millis().div_euclid(1_000).to_string();
        let signatures = self.0.iter().map(|key| {
            let mut context = hmac::Context::with_key(key);
            [id.as_bytes(), b".", timestamp.as_bytes(), b".", body].iter().for_each(|part| context.update(part));
            format!("v1,{}", BASE64.encode(context.sign()))
        });
        let signatures = signatures.collect::<Vec<_>>().join(" ");
        for (name, value) in [(&ID, id), (&TIMESTAMP, timestamp), (&SIGNATURE, signatures)] {
            headers.insert(name, HeaderValue::try_from(value).expect("it is visible ASCII"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's own tests.
    #[test]
    fn a_call_is_signed_as_the_specification_has_it() {
        let signer = Signer::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
        let mut headers = HeaderMap::new();
        let now = Time::from_millis(1_614_265_330_999);
        signer.sign(&mut headers, "msg_p5jXN8AQM9LWM0D4loKWxJek", now, br#"{"test": 2432232314}"#);
        assert_eq!(headers["webhook-id"], "msg_p5jXN8AQM9LWM0D4loKWxJek");
        assert_eq!(headers["webhook-timestamp"], "1614265330");
        assert_eq!(headers["webhook-signature"], "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        signer.sign(&mut headers, "a.b c/ñ%-_7", now, b"");
        assert_eq!(headers["webhook-id"], "a%2Eb%20c%2F%C3%B1%25-_7", "no full stop, and nothing that is no header");
    }

    #[test]
    fn secrets_are_refused_without_being_shown() {
        let long = format!("whsec_{}", BASE64.encode([7; 65]));
        for secret in ["", "whsec_", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_Mf!Q9r8", &*long] {
            let error = Signer::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", secret]).unwrap_err();
            assert!(error.starts_with("secret 2 is not `whsec_`"), "{error}");
            assert!(secret.len() < 7 || !error.contains(secret), "{error}");
        }
        Signer::new(["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"]).unwrap();
        Signer::new([&*format!("whsec_{}", BASE64.encode([7; 32]).trim_end_matches('='))]).unwrap();
    }
}
