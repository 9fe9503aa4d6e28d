//! Pages of long lists: how many rows a page has, and the cursor of the next page.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::problem::{Problem, Result};
use super::wire::hex;

const DEFAULT_ROWS: u32 = 50;
const MAX_ROWS: u32 = 500;

/// How many rows a page has.
///
/// # Errors
/// When `limit` is 0 or greater than the maximum.
pub fn size(limit: Option<u32>) -> Result<u32> {
    match limit.unwrap_or(DEFAULT_ROWS) {
        limit @ 1..=MAX_ROWS => Ok(limit),
        limit => Err(Problem::bad_request(format!("limit={limit}: from 1 to {MAX_ROWS} is possible"))),
    }
}

/// A cursor as text for clients. Clients must not read its content.
pub fn encode_cursor<T: Serialize>(place: &T) -> String {
    hex(&serde_json::to_vec(place).unwrap_or_default())
}

/// The cursor that a client has sent.
///
/// # Errors
/// When this server cannot have made the text.
pub fn decode_cursor<T: DeserializeOwned>(after: Option<&str>) -> Result<Option<T>> {
    let Some(after) = after else { return Ok(None) };
    let digit = |digit: &u8| char::from(*digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = after.as_bytes().chunks(2).map(byte).collect();
    let place = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    place.map(Some).ok_or_else(|| Problem::bad_request("`after` is not what an earlier answer had as `after`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_as_they_were_given() {
        let given = ("sync".to_owned(), "ios/ü\u{0}\"".to_owned(), i64::MIN);
        assert_eq!(decode_cursor::<(String, String, i64)>(Some(&encode_cursor(&given))).unwrap(), Some(given));
        assert_eq!(decode_cursor::<i64>(None).unwrap(), None);
        for odd in ["", "7", "zz", "37ü", "2237", "%00"] {
            assert_eq!(decode_cursor::<i64>(Some(odd)).unwrap_err().status, 400, "{odd}");
        }
    }

    #[test]
    fn pages_are_bounded() {
        for (limit, size_of) in
            [(None, Some(50)), (Some(1), Some(1)), (Some(500), Some(500)), (Some(0), None), (Some(501), None)]
        {
            assert_eq!(size(limit).ok(), size_of, "{limit:?}");
        }
    }
}
