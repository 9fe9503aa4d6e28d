//! What connecting to RabbitMQ answers in a program that was built without the feature `rabbitmq`.

use std::sync::Arc;

use crate::settings::BrokerSettings;
use crate::{Broker, BrokerError};

/// Refuses.
///
/// # Errors
/// [`BrokerError::Other`], with what to do.
pub async fn connect(_settings: &BrokerSettings) -> Result<Arc<dyn Broker>, BrokerError> {
    Err(BrokerError::Other(
        "broker.url leads to RabbitMQ, and this program was built without it: in Cargo.toml, give the dependency \
         `roundelay` the feature `rabbitmq`, or set broker.url to `embedded`"
            .into(),
    ))
}

/// Refuses, as [`connect`] does, which never finds that a broker is away.
///
/// # Errors
/// [`BrokerError::Other`].
pub fn absent(_settings: &BrokerSettings, why: &str) -> Result<Arc<dyn Broker>, BrokerError> {
    Err(BrokerError::Other(why.into()))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use roundelay_model::secret::Secret;
    use roundelay_net::tls::BrokerTls;

    use super::*;
    use crate::settings::BrokerUrl;

    #[tokio::test]
    async fn connecting_says_which_feature_is_missing_and_what_to_do() {
        let settings = BrokerSettings {
            url: BrokerUrl::Amqp(Secret::new("amqp://127.0.0.1:1")),
            prefix: "roundelay.".into(),
            management: None,
            declare: true,
            delays: crate::Delays::Auto,
            bulk_rate: NonZeroU32::MIN,
            tls: BrokerTls::default(),
        };
        let Err(error) = connect(&settings).await else { panic!("connected without RabbitMQ") };
        let error = error.to_string();
        assert!(error.contains("feature `rabbitmq`") && error.contains("`embedded`"), "{error}");
        assert_eq!(absent(&settings, "it is away").err().map(|error| error.to_string()), Some("it is away".into()));
    }
}
