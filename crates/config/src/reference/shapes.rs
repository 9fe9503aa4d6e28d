//! The shapes, in the schema and as defaults, of what reads itself in a way of its own.

use std::borrow::Cow;

use roundelay_model::secret::Secret;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use crate::raw::duration::HumanDuration;
use crate::raw::handlers::Secrets;
use crate::raw::model::{Length, Quantiles};

/// As people write it: `7days`, `30s`.
impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(self.0))
    }
}

impl JsonSchema for HumanDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    /// So that bounds can stand beside it.
    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let units = "nanos|nsec|ns|usec|us|µs|millis|msec|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|\
                     wks?|w|months?|M|years?|yrs?|y";
        let pattern = format!(r"^\s*(0|(\d+(\.\d+)?\s*({units})\s*)+)\s*$");
        json_schema!({ "type": "string", "format": "x-duration", "pattern": pattern })
    }
}

impl Serialize for Secrets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl JsonSchema for Secrets {
    fn schema_name() -> Cow<'static, str> {
        "Secrets".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (one, several) = (generator.subschema_for::<Secret>(), generator.subschema_for::<Vec<Secret>>());
        json_schema!({ "description": "One secret, or several.", "anyOf": [one, several] })
    }
}

impl Serialize for Length {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(self.p99.is_none(), "the default is one length");
        self.p50.serialize(serializer)
    }
}

impl JsonSchema for Length {
    fn schema_name() -> Cow<'static, str> {
        "Length".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (one, quantiles) = (generator.subschema_for::<HumanDuration>(), generator.subschema_for::<Quantiles>());
        json_schema!({ "description": "One length, or a distribution of them.", "anyOf": [one, quantiles] })
    }
}
