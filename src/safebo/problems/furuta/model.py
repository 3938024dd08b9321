"""The pendulum as a MuJoCo model, written from its parameters."""

from __future__ import annotations

from typing import Any

from safebo.problems.furuta.parameters import FurutaParameters

PHYSICS_STEP = 0.0005
"""Seconds per physics step; the fastest closed loop oscillates at about 40 rad/s, 300 steps per period."""

INTEGRATOR = "implicitfast"
"""First order, damping implicit. "RK4" costs four times as much and gives the same experiments."""

_THIN = 1e-9
"""Inertia of a slender rod about itself, kg m²; MuJoCo wants it positive."""

# A positive voltage turns the arm to positive θ and, upright, the pendulum to positive α. Bodies have explicit inertias; the
# geometries are only seen. The motor is k/R u - k²/R θ': the back-EMF acts inside every physics step.
_XML = """
<mujoco model="furuta">
  <compiler angle="radian" inertiafromgeom="false"/>
  <option timestep="{step}" gravity="0 0 -{p.gravity}" integrator="{integrator}"><flag contact="disable"/></option>
  <visual><global offwidth="960" offheight="720"/><quality shadowsize="2048"/><map znear="0.05"/></visual>
  <asset>
    <texture type="skybox" builtin="gradient" rgb1="0.98 0.98 0.98" rgb2="0.86 0.89 0.93" width="64" height="64"/>
    <texture name="floor" type="2d" builtin="checker" rgb1="0.93 0.93 0.93" rgb2="0.88 0.88 0.88" width="64" height="64"/>
    <material name="floor" texture="floor" texrepeat="12 12" reflectance="0.05"/>
  </asset>
  <worldbody>
    <light pos="0.4 -0.5 0.9" dir="-0.4 0.5 -0.9" diffuse="0.7 0.7 0.7"/>
    <camera name="bench" pos="0.45 -0.32 0.14" xyaxes="0.581 0.814 0 -0.194 0.138 0.971" fovy="38"/>
    <geom type="plane" size="0.6 0.6 0.01" pos="0 0 -0.16" material="floor"/>
    <geom type="box" size="0.051 0.051 0.065" pos="0 0 -0.095" rgba="0.16 0.18 0.2 1"/>
    <geom type="cylinder" size="0.014 0.012" pos="0 0 -0.018" rgba="0.5 0.52 0.55 1"/>
    <body name="arm">
      <inertial pos="{arm_centre} 0 0" mass="{p.arm_mass}" diaginertia="{thin} {arm_own} {arm_own}"/>
      <joint name="arm" type="hinge" axis="0 0 1" damping="{p.arm_damping}" frictionloss="{p.arm_friction}"
             armature="{p.rotor_inertia}"/>
      <geom type="capsule" fromto="0 0 0 {p.arm_length} 0 0" size="0.005" rgba="0.55 0.57 0.6 1"/>
      <body name="pendulum" pos="{p.arm_length} 0 0">
        <inertial pos="0 0 {p.half_length}" mass="{p.pendulum_mass}" diaginertia="{pendulum_own} {pendulum_own} {thin}"/>
        <joint name="pendulum" type="hinge" axis="1 0 0" damping="{p.pendulum_damping}" frictionloss="{p.pendulum_friction}"/>
        <geom type="capsule" fromto="0 0 0 0 0 {p.pendulum_length}" size="0.0045" rgba="0.84 0.37 0 1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <general name="motor" joint="arm" ctrllimited="true" ctrlrange="-{p.max_voltage} {p.max_voltage}"
             gainprm="{torque}" biastype="affine" biasprm="0 0 -{back_emf}"/>
  </actuator>
</mujoco>
"""


def model_xml(parameters: FurutaParameters, step: float = PHYSICS_STEP, integrator: str = INTEGRATOR) -> str:
    """The MuJoCo model: joint positions (θ, α), one control, the voltage."""
    p = parameters
    return _XML.format(
        p=p,
        step=step,
        integrator=integrator,
        thin=_THIN,
        arm_centre=0.5 * p.arm_length,
        arm_own=p.arm_mass * p.arm_length**2 / 12.0,
        pendulum_own=p.pendulum_mass * p.pendulum_length**2 / 12.0,
        torque=p.motor_constant / p.resistance,
        back_emf=p.motor_constant**2 / p.resistance,
    )


def build(parameters: FurutaParameters, step: float = PHYSICS_STEP, integrator: str = INTEGRATOR) -> tuple[Any, Any]:
    """MuJoCo's model and data."""
    import mujoco

    model = mujoco.MjModel.from_xml_string(model_xml(parameters, step, integrator))
    return model, mujoco.MjData(model)
