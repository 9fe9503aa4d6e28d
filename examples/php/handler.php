<?php
// Handles the jobs of a kind: the worker POSTs each of them here.
//
//   PHP_CLI_SERVER_WORKERS=4 php -S 127.0.0.1:8000 handler.php
//
// Needs nothing but PHP. What it gets and may answer is in docs/handlers.md.

class Busy extends Exception
{
}

// A job may come again: its worker may die after the work and before the record. Keep this where the
// effect is, in the same transaction; here it is an empty file for each id.
function mark(string $what, string $id): string
{
    $folder = getenv('DONE_FOLDER') ?: sys_get_temp_dir() . '/roundelay-done';
    is_dir($folder) || @mkdir($folder, 0700, true);
    return "$folder/$what-" . sha1($id);
}

/** The work. A payload with "busy" stands for an upstream that is busy when it is asked first. */
function sync(array $job): void
{
    if (($job['payload']['busy'] ?? false) && !file_exists(mark('asked', $job['id']))) {
        touch(mark('asked', $job['id']));
        throw new Busy('the upstream is busy', 1);
    }
    file_put_contents('php://stdout', "synced {$job['key']} {$job['id']}\n");
}

/** A status, further headers, and what the run came to. */
function answer(array $job): array
{
    if (file_exists(mark('done', $job['id']))) {
        return [200, [], ['outcome' => 'done']];
    }
    if (!isset($job['payload']['name'])) {
        // Trying again would not help.
        return [200, [], ['outcome' => 'fail', 'reason' => 'the payload has no name']];
    }
    try {
        sync($job);
    } catch (Busy $busy) {
        // Comes again then, with no attempt charged; whatever else waits for the same throttle waits, too.
        return [503, ["Retry-After: {$busy->getCode()}"], null];
    }
    touch(mark('done', $job['id']));
    return [200, [], ['outcome' => 'done']];
}

$body = file_get_contents('php://input');
// Where strangers reach this port, check here that the worker has sent $body, before it is read.
try {
    [$status, $headers, $outcome] = answer(json_decode($body, true, 512, JSON_THROW_ON_ERROR));
} catch (Throwable $error) {
    // Tried again, by the kind's `retry`.
    [$status, $headers, $outcome] = [500, [], ['outcome' => 'retry', 'reason' => $error->getMessage()]];
}
http_response_code($status);
array_map('header', $headers);
echo json_encode($outcome);
