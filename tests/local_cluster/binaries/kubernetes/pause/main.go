// Command pause holds a pod's namespaces open until it is told to leave.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	leave := make(chan os.Signal, 1)
	signal.Notify(leave, syscall.SIGINT, syscall.SIGTERM)
	<-leave
}
