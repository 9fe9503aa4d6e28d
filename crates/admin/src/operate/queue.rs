//! Verbs on platform queues while workers run: pause, resume, set the concurrency.

use roundelay_model::fleet::{Closed, FleetOrder, FleetOrders, Subject};

use super::{OperateError, Operator, Ordered, Result, bad, reason};

/// The most jobs of a queue that a worker may run at the same time; the configuration has the same bound.
const MAX_CONCURRENCY: usize = 65_535;

/// Pauses a queue: workers take no more jobs from it. What runs finishes; the rest waits on the broker.
///
/// # Errors
/// When there is no such queue, the reason is empty, or the ledger does not answer.
pub async fn pause(operator: &Operator<'_>, queue: &str, why: &str) -> Result<Ordered<FleetOrders>> {
    let why = reason(why).map_err(|wrong| bad("why", wrong))?.to_owned();
    let words = format!("{queue} is paused: workers take nothing more within two seconds, and what runs finishes");
    order(operator, queue, FleetOrder::Close { why }, words).await
}

/// Lets workers take jobs from a queue again.
///
/// # Errors
/// When there is no such queue, or the ledger does not answer.
pub async fn resume(operator: &Operator<'_>, queue: &str) -> Result<Ordered<FleetOrders>> {
    order(operator, queue, FleetOrder::Open, format!("{queue} goes on within two seconds")).await
}

/// Pauses all queues that are not paused; who has paused another keeps it so. Answers with those that it has paused.
///
/// # Errors
/// When the reason is empty, or the ledger does not answer: some may be paused then, and the order can be given again.
pub async fn pause_all(operator: &Operator<'_>, why: &str) -> Result<Ordered<Vec<String>>> {
    let why = reason(why).map_err(|wrong| bad("why", wrong))?.to_owned();
    let of = chosen(operator, |closed| closed.is_none()).await?;
    let words = match of.len() {
        0 => "all queues are paused already".to_owned(),
        some => format!("{} paused: workers take nothing more within two seconds, and what runs finishes", are(some)),
    };
    order_all(operator, of, FleetOrder::Close { why }, words).await
}

/// Lets workers take jobs again from all queues that are paused, or only from those that were paused with the reason
/// `why`. Answers with these.
///
/// # Errors
/// When the reason is empty, or the ledger does not answer: some may go on then, and the order can be given again.
pub async fn resume_all(operator: &Operator<'_>, why: Option<&str>) -> Result<Ordered<Vec<String>>> {
    let why = why.map(reason).transpose().map_err(|wrong| bad("why", wrong))?;
    let of = chosen(operator, |closed| closed.is_some_and(|closed| why.is_none_or(|why| closed.why == why))).await?;
    let words = match (of.len(), why) {
        (0, None) => "no queue is paused".to_owned(),
        (0, Some(why)) => format!("no queue is paused with the reason {why:?}"),
        (some, _) => format!("{} resumed, and workers take jobs of them within two seconds", are(some)),
    };
    order_all(operator, of, FleetOrder::Open, words).await
}

fn are(queues: usize) -> String {
    if queues == 1 { "one queue is".into() } else { format!("{queues} queues are") }
}

/// The configured queues of which this holds, by what they are paused by.
async fn chosen(operator: &Operator<'_>, fits: impl Fn(Option<&Closed>) -> bool) -> Result<Vec<String>> {
    let orders = operator.ledger.fleet_orders().await?;
    let closed = |queue: &String| orders.get(&Subject::Queue(queue.clone())).and_then(|orders| orders.closed.as_ref());
    Ok(operator.config.queues.keys().filter(|queue| fits(closed(queue))).cloned().collect())
}

async fn order_all(
    operator: &Operator<'_>,
    of: Vec<String>,
    order: FleetOrder,
    words: String,
) -> Result<Ordered<Vec<String>>> {
    for queue in &of {
        operator.order_fleet(Subject::Queue(queue.clone()), order.clone(), String::new()).await?;
    }
    Ok(Ordered { words, orders: of })
}

/// Sets how many jobs of a queue each worker runs at the same time; `None` restores the configured number.
///
/// # Errors
/// When there is no such queue, the number is out of range, or the ledger does not answer.
pub async fn concurrency(operator: &Operator<'_>, queue: &str, places: Option<usize>) -> Result<Ordered<FleetOrders>> {
    check_places(places).map_err(|wrong| bad("concurrency", wrong))?;
    let words = match places {
        Some(places) => format!("each worker runs {places} jobs of {queue} at the same time within two seconds"),
        None => format!("each worker runs as many jobs of {queue} as are configured within two seconds"),
    };
    order(operator, queue, FleetOrder::Concurrency(places), words).await
}

fn check_places(places: Option<usize>) -> std::result::Result<(), String> {
    match places {
        Some(places) if places == 0 || places > MAX_CONCURRENCY => {
            Err(format!("from 1 to {MAX_CONCURRENCY} is possible; to let nothing run, pause the queue"))
        }
        _ => Ok(()),
    }
}

async fn order(operator: &Operator<'_>, queue: &str, order: FleetOrder, words: String) -> Result<Ordered<FleetOrders>> {
    operator.config.queue(queue).map_err(OperateError::Unknown)?;
    operator.order_fleet(Subject::Queue(queue.into()), order, words).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_how_many_jobs_may_run() {
        for (places, fine) in
            [(None, true), (Some(0), false), (Some(1), true), (Some(65_535), true), (Some(65_536), false)]
        {
            assert_eq!(check_places(places).is_ok(), fine, "{places:?}");
        }
        let refused = check_places(Some(0)).unwrap_err();
        assert_eq!(refused, "from 1 to 65535 is possible; to let nothing run, pause the queue");
    }
}
