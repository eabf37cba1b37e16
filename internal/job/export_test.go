package job

// Scan is scan.
var Scan = scan
