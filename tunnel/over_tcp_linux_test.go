package tunnel

import "testing"

// What holds over UDP holds over TCP.
func TestOverTCP(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"Forward": TestForward, "HalfClose": TestHalfClose, "RefusedTarget": TestRefusedTarget, "ResetPassesThrough": TestResetPassesThrough,
		"HangingTarget": TestHangingTarget, "Reverse": TestReverse,
		"ReverseOfTwoClients": TestReverseOfTwoClients, "ReverseIsRevoked": TestReverseIsRevoked, "UDP": TestUDP, "ReverseUDP": TestReverseUDP,
		"RefusedUDP": TestRefusedUDP, "SocksConnect": TestSocksConnect, "SocksAssociate": TestSocksAssociate, "ReverseSocks": TestReverseSocks,
		"Stdio": TestStdio, "ServerRestarts": TestServerRestarts, "EndsWithStuckConnections": TestEndsWithStuckConnections,
		"CutOffIsReset": TestCutOffIsReset, "UsersChange": TestUsersChange,
		"AuthoritiesChange": TestAuthoritiesChange, "TurnedAway": TestTurnedAway,
		"FiguresByUser": TestFiguresByUser, "FlowsMakeRoom": TestFlowsMakeRoom,
		"ClientIsNoOpenDoor": TestClientIsNoOpenDoor, "ConnectionsOutliveUpgrades": TestConnectionsOutliveUpgrades, "Drain": TestDrain,
		"ServerThatAlwaysAsksToLeave": TestServerThatAlwaysAsksToLeave,
		"SeveralServers":              TestSeveralServers,
	} {
		t.Run(name, test)
	}
}
