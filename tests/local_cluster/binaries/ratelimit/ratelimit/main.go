// Envoy's rate limit service under the name by which Envoy Gateway starts it.
package main

import (
	"github.com/envoyproxy/ratelimit/src/service_cmd/runner"
	"github.com/envoyproxy/ratelimit/src/settings"
)

func main() {
	service := runner.NewRunner(settings.NewSettings())
	service.Run()
}
