package main

import "github.com/urfave/cli/v3"

func (p *program) kcptunServer() *cli.Command { return &cli.Command{Name: "kcptun-server"} }
func (p *program) kcptunClient() *cli.Command { return &cli.Command{Name: "kcptun-client"} }
