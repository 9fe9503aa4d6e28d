//! stub
use super::topology::Names;
use super::*;
pub struct RabbitBroker;
impl RabbitBroker {
    pub async fn connect(_u: &str, _n: Names) -> Result<Self, BrokerError> {
        Err(BrokerError::Other("stub".into()))
    }
}
#[async_trait]
impl Broker for RabbitBroker {
    fn keeps_messages(&self) -> bool {
        true
    }
    async fn apply(&self, _t: &Topology) -> Result<(), BrokerError> {
        Ok(())
    }
    async fn remove(&self, _t: &Topology) -> Result<(), BrokerError> {
        Ok(())
    }
    async fn publish(&self, _m: Message) -> Result<(), PublishError> {
        Ok(())
    }
    async fn consume(&self, _q: &str, _p: u16) -> Result<Consumer, BrokerError> {
        Err(BrokerError::Other("stub".into()))
    }
    async fn depth(&self, _q: &str) -> Result<Depth, BrokerError> {
        Ok(Depth::default())
    }
    async fn close(&self) {}
}
