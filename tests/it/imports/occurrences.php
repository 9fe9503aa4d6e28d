<?php
// When entries of Laravel's schedule come next, by the parser that Laravel uses: occurrences.php FILE
// Prints a JSON object: for each place in the list the next 200 times after the beginning, in seconds since 1970.

require 'Cron/autoload.php';

$found = [];
foreach (json_decode(file_get_contents($argv[1]), true) as $n => $event) {
    if (str_contains($event['command'], 'Closure') || $event['repeat_seconds']) {
        continue;
    }
    $cron = new Cron\CronExpression($event['expression']);
    $times = $cron->getMultipleRunDates(200, '2026-01-15T00:00:00Z', false, false, $event['timezone']);
    $found['entry ' . ($n + 1)] = array_map(fn ($time) => $time->getTimestamp(), $times);
}
echo json_encode($found);
